#include "computron/model/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// What Ops::top_k_log_sum_exp leaves of logits[first, last): written here from its contract.
TopLogits top_k_log_sum_exp(const std::vector<float>& logits, std::size_t first, std::size_t last, int top,
                            TokenId target) {
  TopLogits s;
  s.max = -INFINITY;
  std::vector<TokenId> order;
  for (std::size_t i = first; i < last; ++i) {
    order.push_back(static_cast<TokenId>(i));
    s.max = std::max(s.max, logits[i]);
    if (!std::isfinite(logits[i])) s.finite = 0;
  }
  for (std::size_t i = first; i < last; ++i) s.sum_exp += std::exp(static_cast<double>(logits[i]) - s.max);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  s.count = static_cast<std::int32_t>(std::min<std::size_t>(std::max(top, 1), order.size()));
  for (int i = 0; i < s.count; ++i) {
    s.tokens[i] = order[i];
    s.logits[i] = logits[order[i]];
  }
  if (target >= static_cast<TokenId>(first) && target < static_cast<TokenId>(last)) {
    s.has_target = 1;
    s.target_logit = logits[target];
  }
  return s;
}

// The row cut at `cuts` (ascending) into one part a rank, each part's top-k taken, and sampled.
SampledRow sample(const std::vector<float>& logits, std::vector<std::size_t> cuts, int top, TokenId target = -1) {
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(logits.size());
  std::vector<TopLogits> top_logits;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    top_logits.push_back(top_k_log_sum_exp(logits, cuts[i], cuts[i + 1], top, target));
  }
  std::vector<const TopLogits*> parts;
  for (const TopLogits& part : top_logits) parts.push_back(&part);
  return sample_greedy(parts, top);
}

// log softmax of the whole row in long double.
double log_probability(const std::vector<float>& logits, TokenId token) {
  const float max = *std::max_element(logits.begin(), logits.end());
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit) - max);
  return static_cast<double>(static_cast<long double>(logits[token]) - max - std::log(sum));
}

// As near as a float32 comes to the exact value, but for the last bits of the sum.
void expect_log_probability(float found, const std::vector<float>& logits, TokenId token) {
  const double exact = log_probability(logits, token);
  EXPECT_NEAR(found, exact, 1e-7 * std::abs(exact) + 1e-12) << "token " << token;
}

std::vector<float> random_row(std::mt19937_64& random, std::size_t size, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> row(size);
  for (float& logit : row) logit = normal(random);
  return row;
}

TEST(SampleGreedy, MergedPartsEqualTheSoftmaxOfTheWholeRow) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t vocab = 1 + random() % 300;
    const std::vector<float> logits = random_row(random, vocab, std::pow(10.f, static_cast<float>(i % 5) - 2));
    std::vector<std::size_t> cuts(random() % 8);
    for (std::size_t& cut : cuts) cut = random() % (vocab + 1);
    std::sort(cuts.begin(), cuts.end());
    const int top = static_cast<int>(random() % (TopLogits::kTop + 1));
    const auto target = static_cast<TokenId>(random() % vocab);

    const SampledRow row = sample(logits, cuts, top, target);
    ASSERT_TRUE(row.finite);
    EXPECT_EQ(row.token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    expect_log_probability(row.logprob, logits, row.token);
    expect_log_probability(row.target_logprob, logits, target);
    ASSERT_EQ(row.top.size(), std::min<std::size_t>(top, vocab));
    for (const auto& [token, logprob] : row.top) expect_log_probability(logprob, logits, token);
    for (std::size_t k = 1; k < row.top.size(); ++k) {
      EXPECT_GE(logits[row.top[k - 1].first], logits[row.top[k].first]) << "place " << k;
    }
    ASSERT_FALSE(HasFailure()) << "row " << i;
  }
}

TEST(SampleGreedy, TheBestAreTheBestOfTheWholeRow) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 500; ++i) {
    std::vector<float> logits = random_row(random, 60, 1);
    for (float& logit : logits) logit = std::round(logit * 2);  // many ties
    const SampledRow row = sample(logits, {7, 7, 31}, 21);
    std::vector<TokenId> expected(logits.size());
    for (std::size_t k = 0; k < expected.size(); ++k) expected[k] = static_cast<TokenId>(k);
    std::stable_sort(expected.begin(), expected.end(), [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    expected.resize(21);
    std::vector<TokenId> found;
    for (const auto& candidate : row.top) found.push_back(candidate.first);
    ASSERT_EQ(found, expected) << "row " << i;
    ASSERT_EQ(row.token, expected.front()) << "row " << i;
  }
}

TEST(SampleGreedy, TiesGoToTheSmallerTokenAlsoAcrossRanks) {
  const std::vector<float> logits{1, 5, 2, 5, 5, 0};
  for (const std::vector<std::size_t>& cuts : {std::vector<std::size_t>{}, {2}, {4}, {1, 3}, {2, 4}}) {
    const SampledRow row = sample(logits, cuts, 3);
    EXPECT_EQ(row.token, 1);
    EXPECT_THAT(row.top, ElementsAre(Pair(1, row.logprob), Pair(3, row.logprob), Pair(4, row.logprob)));
  }
}

TEST(SampleGreedy, NegativeZeroTiesWithZero) { EXPECT_EQ(sample({-0.f, 0.f}, {1}, 1).token, 0); }

TEST(SampleGreedy, FewerCandidatesThanAskedFor) {
  const std::vector<float> logits{1, 3, 2};
  const SampledRow row = sample(logits, {1, 2}, 20);
  ASSERT_EQ(row.top.size(), 3u);
  EXPECT_EQ(row.top[0].first, 1);
  EXPECT_EQ(row.top[1].first, 2);
  EXPECT_EQ(row.top[2].first, 0);
}

TEST(SampleGreedy, NoCandidatesWantedStillChoosesAToken) {
  const std::vector<float> logits{1, 3, 2};
  const SampledRow row = sample(logits, {2}, 0);
  EXPECT_EQ(row.token, 1);
  expect_log_probability(row.logprob, logits, 1);
  EXPECT_THAT(row.top, IsEmpty());
}

TEST(SampleGreedy, EmptySlicesChangeNothing) {
  const std::vector<float> logits{-700, -800, -701};
  const SampledRow whole = sample(logits, {}, 3, 2);
  for (const std::vector<std::size_t>& cuts : {std::vector<std::size_t>{0}, {3}, {0, 3, 3}}) {
    const SampledRow row = sample(logits, cuts, 3, 2);
    EXPECT_EQ(row.token, whole.token);
    EXPECT_EQ(row.logprob, whole.logprob);
    EXPECT_EQ(row.target_logprob, whole.target_logprob);
    EXPECT_EQ(row.top, whole.top);
  }
}

// A top-k of no columns need not set its maximum: it must not be looked at.
TEST(SampleGreedy, TheMaximumOfAnEmptySliceIsIgnored) {
  const std::vector<float> logits{-2000, -2100};
  const TopLogits real = top_k_log_sum_exp(logits, 0, 2, 2, -1);
  const TopLogits empty{};
  const TopLogits* parts[] = {&real, &empty};
  EXPECT_EQ(sample_greedy(parts, 2).logprob, sample(logits, {}, 2).logprob);
}

TEST(SampleGreedy, DistantLogitsNeitherOverflowNorVanish) {
  const std::vector<float> logits{3e38f, -3e38f, 88.8f, 1000.f};
  const SampledRow row = sample(logits, {1, 2}, 4);
  EXPECT_EQ(row.token, 0);
  EXPECT_EQ(row.logprob, 0);
  EXPECT_TRUE(std::isinf(row.top[3].second)) << "-6e38 is no float32";
  expect_log_probability(sample({500, 499.5f, 498}, {1}, 3).logprob, {500, 499.5f, 498}, 0);
}

TEST(SampleGreedy, ASingleNonFiniteLogitAnywhereIsReported) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (std::size_t at = 0; at < 6; ++at) {
      std::vector<float> logits{1, 2, 3, 4, 5, 6};
      logits[at] = bad;
      EXPECT_FALSE(sample(logits, {2, 4}, 3).finite) << bad << " at " << at;
    }
  }
  EXPECT_TRUE(sample({1, 2, 3, 4, 5, 6}, {2, 4}, 3).finite);
}

TEST(SampleGreedy, NoTargetGivesNone) {
  EXPECT_EQ(sample({1, 2, 3}, {1}, 1, -1).target_logprob, 0);
  const std::vector<float> logits{1, 2, 3};
  for (TokenId target = 0; target < 3; ++target) {
    expect_log_probability(sample(logits, {1, 2}, 1, target).target_logprob, logits, target);
  }
}

TEST(SampleGreedy, ARowOfNoLogitsIsAnError) {
  const TopLogits empty{};
  const TopLogits* parts[] = {&empty, &empty};
  EXPECT_THROW(sample_greedy(parts, 1), Error);
}

}  // namespace
}  // namespace computron
