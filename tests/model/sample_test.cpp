// Sampling tokens: slices on their own, then together, against sorting the whole row; and many samples against the
// exact distribution.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "computron/device/device.h"
#include "computron/guided/guide_spec.h"
#include "computron/model/sampler.h"
#include "computron/ops/ops.h"
#include "tests/support/test_device.h"

namespace computron {
namespace {

// The published vectors of Philox4x32-10 (Random123, kat_vectors).
TEST(Random, PhiloxKnownAnswers) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0ull), (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822ull),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, GumbelIsFiniteAtBothEnds) {
  EXPECT_NEAR(gumbel(0), -std::log(33 * std::log(2.0)), 1e-9);
  EXPECT_NEAR(gumbel(~0u), 33 * std::log(2.0), 1e-6);
}

class Sampler {
 public:
  // The token that the row leads to, cut at `cuts`; `asked` tells whether whole slices were needed.
  TokenId sample(const std::vector<float>& logits, RowSampling row, std::vector<std::size_t> cuts,
                 bool* asked = nullptr) {
    cuts.insert(cuts.begin(), 0);
    cuts.push_back(logits.size());
    row.samples = true;
    row.whole = cuts.size() == 2;
    std::vector<SliceSample> samples(cuts.size() - 1);
    std::vector<const SliceSample*> parts;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::vector<float> slice(logits.begin() + static_cast<std::ptrdiff_t>(cuts[i]),
                               logits.begin() + static_cast<std::ptrdiff_t>(cuts[i + 1]));
      const int columns = static_cast<int>(slice.size());
      slice.push_back(1e30f);  // padding
      ops_->sample(*stream_, put(slice), {.first_token = static_cast<TokenId>(cuts[i]), .real = columns}, {&row, 1},
                   &samples[i]);
      stream_->synchronize();
      parts.push_back(&samples[i]);
    }
    const auto sampled = sample_from_slices(row, parts);
    if (asked != nullptr) *asked = !sampled;
    if (sampled) return checked(*sampled, logits);
    std::vector<Candidate> all;
    for (const SliceSample& d : samples) {
      const auto& tokens = d.slice.empty() ? d.candidates : d.slice;
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    return checked(sample_from_all(row, all), logits);
  }

  // What the row offers as one slice.
  SliceSample offer(const std::vector<float>& logits, const RowSampling& row) {
    SliceSample sample;
    const int columns = static_cast<int>(logits.size());
    ops_->sample(*stream_, put(logits), {.first_token = 0, .real = columns}, {&row, 1}, &sample);
    stream_->synchronize();
    return sample;
  }

 private:
  // One row in device memory, until the next.
  Activations put(const std::vector<float>& row) {
    const std::size_t bytes = row.size() * sizeof(float);
    if (!memory_ || memory_->bytes() < bytes) memory_ = device_->allocate(bytes, "a row of logits");
    const Activations on_device{memory_->data(), 1, static_cast<int>(row.size()), DType::kF32};
    ops_->copy_from_host(*stream_, row.data(), on_device);
    return on_device;
  }

  static TokenId checked(const Candidate& c, const std::vector<float>& logits) {
    if (c.token < 0) return c.token;  // none is allowed
    EXPECT_EQ(c.logit, logits[static_cast<std::size_t>(c.token)]) << "the model's own logit comes along";
    return c.token;
  }

  Progress progress_{IdlePolicy{}};
  std::unique_ptr<Device> device_ = test::make_test_device({.threads = 1});
  std::unique_ptr<Stream> stream_ = device_->make_compute_stream(progress_);
  std::unique_ptr<Ops> ops_ = test::on_cpu() ? make_cpu_ops(*device_) : make_cuda_ops(*device_);
  std::unique_ptr<DeviceBuffer> memory_;
};

// The rules of kernels/sampling.h, written once more: the tokens that are kept with their scaled logits, best first.
std::vector<std::pair<double, TokenId>> keep(const std::vector<float>& logits, const RowSampling& row) {
  std::vector<float> x = logits;
  for (const TokenUse use : row.used) {
    float& v = x[static_cast<std::size_t>(use.token)];
    v = v > 0 ? v / row.repetition_penalty : v * row.repetition_penalty;
    v = v - static_cast<float>(use.generated) * row.frequency_penalty - (use.generated > 0 ? row.presence_penalty : 0);
  }
  for (const auto& [token, bias] : row.bias) x[static_cast<std::size_t>(token)] += bias;
  for (const TokenId token : row.banned) x[static_cast<std::size_t>(token)] = -INFINITY;
  for (std::size_t t = 0; t < x.size() && !row.allowed.empty(); ++t) {
    if ((row.allowed[t / 32] >> (t % 32) & 1) == 0) x[t] = -INFINITY;
  }
  std::vector<std::pair<double, TokenId>> kept;
  for (std::size_t i = 0; i < x.size(); ++i) {
    kept.emplace_back(row.temperature > 0 ? x[i] / row.temperature : x[i], static_cast<TokenId>(i));
  }
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  const double best = kept.front().first;
  if (best == -INFINITY) return {};
  std::erase_if(kept, [&](const auto& k) { return row.min_p > 0 && k.first < best + std::log(row.min_p); });
  if (row.top_k > 0) kept.resize(std::min<std::size_t>(kept.size(), static_cast<std::size_t>(row.top_k)));
  double total = 0, sum = 0;
  for (const auto& k : kept) total += std::exp(k.first - best);
  std::size_t count = 0;
  while (count < kept.size() && (count == 0 || sum < row.top_p * total)) sum += std::exp(kept[count++].first - best);
  kept.resize(count);
  return kept;
}

TokenId expected_token(const std::vector<float>& logits, const RowSampling& row) {
  const auto kept = keep(logits, row);
  if (kept.empty()) return -1;
  if (row.temperature == 0) return kept.front().second;
  TokenId best = -1;
  double best_score = 0;
  for (const auto& [scaled, token] : kept) {
    const double score = scaled + noise(row, token);
    if (best >= 0 && (score < best_score || (score == best_score && best < token))) continue;
    best = token;
    best_score = score;
  }
  return best;
}

// Borrowed parts of a row's sampling, at random.
struct RandomSampling {
  RandomSampling(std::mt19937_64& random, std::size_t vocab) {
    const auto from = [&random](double low, double high) {
      return static_cast<float>(low + (high - low) * static_cast<double>(random() % 10000) / 10000);
    };
    const auto one_in = [&random](int n) { return random() % static_cast<std::uint64_t>(n) == 0; };
    row.temperature = one_in(6) ? 0 : from(0.2, 2);
    if (one_in(3)) row.top_k = 1 + static_cast<int>(random() % (one_in(2) ? 50 : 3000));
    if (one_in(3)) row.top_p = one_in(8) ? 0 : from(0.01, 0.999);  // 0: the most probable alone
    if (one_in(3)) row.min_p = from(0.0001, 0.5);
    row.key = random();
    row.position = static_cast<std::uint32_t>(random());
    const auto token = [&] { return static_cast<TokenId>(random() % vocab); };
    if (one_in(2)) {
      std::map<TokenId, std::uint32_t> counts;
      for (int i = 0; i < 20; ++i) counts[token()] = static_cast<std::uint32_t>(random() % 3);
      for (const auto& [t, n] : counts) used.push_back({t, n});
      row.repetition_penalty = from(0.7, 1.5);
      row.frequency_penalty = from(-1, 1);
      row.presence_penalty = from(-1, 1);
    }
    if (one_in(3)) bias = {{token(), from(-5, 5)}};
    if (one_in(3) && vocab > 3) banned = {token(), token()};
    if (one_in(3)) {
      allowed.resize((vocab + 31) / 32);
      const int sparse = one_in(2) ? 2 : 60;
      for (std::size_t t = 0; t < vocab; ++t) {
        if (one_in(sparse)) allowed[t / 32] |= 1u << (t % 32);
      }
    }
    row.allowed = allowed;
    row.used = used;
    row.bias = bias;
    row.banned = banned;
  }
  RowSampling row;
  std::vector<TokenUse> used;
  std::vector<std::pair<TokenId, float>> bias;
  std::vector<TokenId> banned;
  std::vector<std::uint32_t> allowed;
};

std::vector<float> random_row(std::mt19937_64& random, std::size_t size, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> row(size);
  for (float& logit : row) logit = normal(random);
  return row;
}

TEST(Sample, AnyCutOfARowGivesTheTokenOfTheWholeRow) {
  std::mt19937_64 random(1);
  Sampler sampler;
  int asked = 0, asked_whole = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::size_t vocab = i % 5 == 0 ? 5000 + random() % 3000 : 1 + random() % 200;
    std::vector<float> logits = random_row(random, vocab, i % 3 == 0 ? 0.1f : 3.0f);
    for (float& logit : logits) logit -= static_cast<float>(i % 4 * 10);  // far from zero, as many models' are
    const RandomSampling sampling(random, vocab);
    const TokenId expected = expected_token(logits, sampling.row);
    std::vector<std::size_t> cuts(random() % 4);
    for (std::size_t& cut : cuts) cut = random() % (vocab + 1);
    std::sort(cuts.begin(), cuts.end());
    bool needed = false;
    ASSERT_EQ(sampler.sample(logits, sampling.row, cuts, &needed), expected) << "row " << i;
    asked += needed;
    ASSERT_EQ(sampler.sample(logits, sampling.row, {}, &needed), expected) << "row " << i << " on one rank";
    asked_whole += needed;
  }
  EXPECT_GT(asked, 10) << "rows whose candidates do not suffice";
  EXPECT_GT(asked_whole, 5);
}

// Pearson's statistic of `samples` samples at positions 0, 1, ...; tokens expected less than 5 times are put together.
void expect_distribution(const std::vector<float>& logits, RowSampling row, std::vector<std::size_t> cuts,
                         const std::string& what) {
  constexpr int kSamples = 20000;
  const auto kept = keep(logits, row);
  double total = 0;
  for (const auto& k : kept) total += std::exp(k.first - kept.front().first);
  Sampler sampler;
  std::map<TokenId, int> counts;
  for (int i = 0; i < kSamples; ++i) {
    row.position = static_cast<std::uint32_t>(i);
    ++counts[sampler.sample(logits, row, cuts)];
  }
  double statistic = 0, rest = kSamples;
  int cells = 0, rest_count = kSamples;
  for (const auto& [scaled, token] : kept) {
    const double expected = kSamples * std::exp(scaled - kept.front().first) / total;
    if (expected < 5) continue;
    const int found = counts[token];
    statistic += (found - expected) * (found - expected) / expected;
    rest -= expected;
    rest_count -= found;
    ++cells;
  }
  if (rest >= 5) {
    statistic += (rest_count - rest) * (rest_count - rest) / rest;
    ++cells;
  } else {
    EXPECT_LE(rest_count, rest + 20) << what << ": tokens that are not kept";
  }
  // Chi-square with k degrees of freedom is below k + 4 sqrt(2k) + 8 but for one seed in ten thousand; seeds are fixed.
  const double degrees = cells - 1;
  EXPECT_LT(statistic, degrees + 4 * std::sqrt(2 * degrees) + 8) << what;
}

TEST(Sample, FollowsTheDistribution) {
  std::mt19937_64 random(7);
  const std::vector<float> logits = random_row(random, 60, 1.5f);
  const std::vector<TokenUse> used = {{3, 0}, {7, 2}, {11, 1}};
  const std::vector<std::pair<TokenId, float>> bias = {{5, 2.0f}, {6, -3.0f}};
  const std::vector<TokenId> banned = {9};
  const auto row = [](auto&& change) {
    RowSampling r{.temperature = 1, .key = 12345};
    change(r);
    return r;
  };
  const std::map<std::string, RowSampling> cases = {
      {"plain", row([](RowSampling&) {})},
      {"hot", row([](RowSampling& r) { r.temperature = 1.7f; })},
      {"cold", row([](RowSampling& r) { r.temperature = 0.5f; })},
      {"top_k", row([](RowSampling& r) { r.top_k = 9; })},
      {"top_p", row([](RowSampling& r) { r.top_p = 0.8f; })},
      {"min_p", row([](RowSampling& r) { r.min_p = 0.1f; })},
      {"all three", row([](RowSampling& r) { r.top_k = 20, r.top_p = 0.9f, r.min_p = 0.02f; })},
      {"penalties", row([&](RowSampling& r) {
         r.repetition_penalty = 1.3f, r.frequency_penalty = 0.4f, r.presence_penalty = 0.5f, r.used = used;
       })},
      {"bias and bans", row([&](RowSampling& r) { r.bias = bias, r.banned = banned; })}};
  for (const auto& [name, sampling] : cases) {
    expect_distribution(logits, sampling, {}, name + " on one rank");
    expect_distribution(logits, sampling, {31}, name + " on two");
  }
}

TEST(Sample, ASliceWithoutANumberOffersNothing) {
  const std::vector<float> logits(3000, NAN);
  Sampler sampler;
  for (const bool whole : {false, true}) {
    const SliceSample offered =
        sampler.offer(logits, {.samples = true, .temperature = 1, .min_p = 0.1f, .whole = whole});
    EXPECT_TRUE(offered.candidates.empty());
    EXPECT_TRUE(offered.slice.empty());
  }
}

TEST(Sample, NoiseOfDifferentKeysAndPositionsIsUnrelated) {
  std::mt19937_64 random(9);
  const std::vector<float> logits(50, 0.0f);
  Sampler sampler;
  std::map<std::pair<TokenId, TokenId>, int> pairs;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    RowSampling row{.temperature = 1, .key = 1, .position = i};
    const TokenId a = sampler.sample(logits, row, {});
    row.key = 2;
    ++pairs[{a % 2, sampler.sample(logits, row, {}) % 2}];
  }
  for (const auto& [pair, count] : pairs) EXPECT_NEAR(count, 1250, 150) << pair.first << pair.second;
}

TEST(SequenceSampling, CountsWhatWasGeneratedOnce) {
  SamplingParams params{.presence_penalty = 1, .stop_tokens = {4}, .min_tokens = 2, .prompt_tokens = 3, .key = 5};
  SequenceSampling sequence(params);
  sequence.append(0, std::vector<TokenId>{7, 8});
  sequence.append(2, std::vector<TokenId>{7, 9, 9, 7});  // one of the prompt's, then three generated
  const RowSampling row = sequence.row(6, true);
  std::map<TokenId, std::uint32_t> used;
  for (const TokenUse use : row.used) used[use.token] = use.generated;
  EXPECT_EQ(used, (std::map<TokenId, std::uint32_t>{{7, 1}, {8, 0}, {9, 2}}));
  EXPECT_TRUE(row.banned.empty()) << "three were generated";
  EXPECT_EQ(sequence.row(4, true).banned.size(), 1u) << "one was";
  EXPECT_TRUE(row.samples);
  EXPECT_FALSE(SequenceSampling({.top_k = 5, .top_p = 0.5f}).row(0, true).samples)
      << "greedy without penalties is plain";
}

TEST(SequenceSampling, FollowsItsGuide) {
  const std::vector<std::string> texts = {"", "a", "b"};
  Guide guide(std::make_shared<TokenTrie>(texts, texts.size()), compile_guide("rab?a"));
  const auto allowed = [&guide](SequenceSampling& sequence) {
    sequence.allow_tokens(guide);
    return sequence.row(9, true).allowed[0];
  };
  SamplingParams params{.stop_tokens = {0}, .prompt_tokens = 2, .guide = std::make_shared<const std::string>("rab?a")};
  EXPECT_TRUE(params.samples());
  SequenceSampling sequence(params);
  sequence.append(0, std::vector<TokenId>{2, 2});  // the prompt
  EXPECT_EQ(allowed(sequence), 2u);
  sequence.append(2, std::vector<TokenId>{1});
  EXPECT_EQ(allowed(sequence), 6u);
  sequence.append(3, std::vector<TokenId>{1});
  EXPECT_EQ(allowed(sequence), 1u) << "the end";

  params.generated = {1};  // begins again, behind one token that it generated and has computed once more
  SequenceSampling again(params);
  again.append(0, std::vector<TokenId>{2, 2, 1});
  EXPECT_EQ(allowed(again), 6u);
  again.append(3, std::vector<TokenId>{2});
  EXPECT_EQ(allowed(again), 2u);
}

}  // namespace
}  // namespace computron
