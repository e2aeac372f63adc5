#include "computron/runtime/step.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/runtime/report.h"

namespace computron {
namespace {

Step sample_step() {
  Step step;
  step.id = 7;
  step.model = 2;
  step.closed = {4, 9};
  step.chunks.push_back({.sequence = 11,
                         .start = 5,
                         .tokens = {1, 2, 3},
                         .new_blocks = {8},
                         .output = SequenceChunk::kAll,
                         .top = 3,
                         .long_factors = true,
                         .after_last = 77});
  step.chunks.push_back(
      {.sequence = 12, .start = 0, .tokens = {6}, .new_blocks = {}, .output = SequenceChunk::kLast, .rider = 300});
  step.stages.resize(2);
  step.stages[1].caches.push_back({.model = 1, .taken = 2, .added = {3, 5}});
  step.stages[1].caches.push_back(
      {.model = 0, .taken = 2, .kind = CacheChange::kOffload, .slots = {9, 4}, .after = {5}});
  step.stages[1].fetches.push_back({.model = 2, .page = 1, .frame = 6, .after = {6, 3}});
  return step;
}

TEST(Step, RoundTripCarriesTheCommonPartAndOneStage) {
  const Step step = sample_step();
  const Step copy = Step::decode(step.encode(1), 1, 2);
  EXPECT_EQ(copy.id, 7u);
  EXPECT_EQ(copy.closed, step.closed);
  ASSERT_EQ(copy.chunks.size(), 2u);
  EXPECT_EQ(copy.chunks[0].tokens, step.chunks[0].tokens);
  EXPECT_EQ(copy.chunks[0].after_last, 77);
  EXPECT_EQ(copy.chunks[0].output, SequenceChunk::kAll);
  EXPECT_TRUE(copy.chunks[0].long_factors);
  EXPECT_FALSE(copy.chunks[1].long_factors);
  EXPECT_EQ(copy.chunks[0].rider, std::nullopt);
  EXPECT_EQ(copy.chunks[1].rider, 300u);
  EXPECT_EQ(copy.chunks[1].output, SequenceChunk::kLast);
  EXPECT_EQ(copy.logit_rows(), 4);
  EXPECT_EQ(copy.rows(), 4);
  EXPECT_TRUE(copy.stages[0].fetches.empty());
  ASSERT_EQ(copy.stages[1].fetches.size(), 1u);
  EXPECT_EQ(copy.stages[1].fetches[0].after, (ReleasePoint{6, 3}));
  ASSERT_EQ(copy.stages[1].caches.size(), 2u);
  EXPECT_EQ(copy.stages[1].caches[0].kind, CacheChange::kPlain);
  EXPECT_EQ(copy.stages[1].caches[0].taken, 2u);
  EXPECT_EQ(copy.stages[1].caches[0].added, (std::vector<FrameId>{3, 5}));
  EXPECT_EQ(copy.stages[1].caches[1].kind, CacheChange::kOffload);
  EXPECT_EQ(copy.stages[1].caches[1].slots, (std::vector<HostSlot>{9, 4}));
  EXPECT_EQ(copy.stages[1].caches[1].after, (ReleasePoint{5, ReleasePoint::kEnd}));
}

TEST(Step, ChunksStandByModel) {
  Step step = sample_step();
  step.chunks.push_back({.sequence = 13, .tokens = {6}, .new_blocks = {}, .rider = 300});
  step.chunks.push_back({.sequence = 14, .tokens = {6}, .new_blocks = {}, .rider = 4});
  const std::vector<ModelChunks> models = step.by_model();
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0].model, 2u);
  EXPECT_EQ(models[0].chunks.size(), 1u);
  EXPECT_EQ(models[1].model, 300u);
  EXPECT_EQ(models[1].chunks.size(), 2u);
  EXPECT_EQ(models[1].chunks[1].sequence, 13u);
  EXPECT_EQ(models[2].model, 4u);
  EXPECT_EQ(models[2].chunks.size(), 1u);
}

TEST(Step, DamagedBytesAreRefusedOrDecodedButNeverReadBeyond) {
  const std::vector<std::byte> good = sample_step().encode(1);
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = good;
    for (int flips = 1 + random() % 4; flips > 0; --flips) bytes[random() % bytes.size()] = std::byte(random());
    if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    try {
      Step::decode(bytes, 1, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
}

// Sequences that begin with guides of these texts; "": with none.
Step guided_step(const std::vector<std::string>& guides) {
  Step step;
  step.id = 3;
  step.stages.resize(2);
  for (std::size_t i = 0; i < guides.size(); ++i) {
    SequenceChunk chunk{.sequence = static_cast<SequenceId>(i), .start = 0, .tokens = {5}, .new_blocks = {}};
    chunk.sampling = SamplingParams{.temperature = 1, .stop_tokens = {2}};
    if (!guides[i].empty()) chunk.sampling->guide = std::make_shared<const std::string>(guides[i]);
    step.chunks.push_back(std::move(chunk));
  }
  return step;
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::size_t times_in(const std::vector<std::byte>& bytes, std::string_view text) {
  const std::string_view all = text_of(bytes);
  std::size_t times = 0;
  for (std::size_t at = all.find(text); at != std::string_view::npos; at = all.find(text, at + 1)) ++times;
  return times;
}

TEST(Step, CarriesEachGuideOnce) {
  const std::string first = "r" + std::string(1000, 'x'), second = "r" + std::string(1000, 'y');
  const Step step = guided_step({first, "", second, first, second, first});
  const std::vector<std::byte> sent = step.encode(1);
  EXPECT_EQ(times_in(sent, first), 1u);
  EXPECT_EQ(times_in(sent, second), 1u);
  const Step copy = Step::decode(sent, 1, 2);
  ASSERT_EQ(copy.chunks.size(), step.chunks.size());
  for (std::size_t i = 0; i < step.chunks.size(); ++i) EXPECT_EQ(copy.chunks[i].sampling, step.chunks[i].sampling) << i;
  EXPECT_EQ(copy.chunks[0].sampling->guide, copy.chunks[5].sampling->guide) << "one text in memory, too";
  EXPECT_EQ(copy.chunks[1].sampling->guide, nullptr);
}

TEST(Step, AGuideThatItDoesNotCarryIsRefusedByName) {
  std::vector<std::byte> sent = guided_step({"ra+", "rb+", "ra+"}).encode(1);
  // A chunk's guide stands behind its stop tokens and its biases, of which there are none.
  const std::string before("\1\0\0\0\2\0\0\0\0\0\0\0", 12);
  ASSERT_EQ(times_in(sent, before), 3u);
  const std::size_t last = text_of(sent).rfind(before) + before.size();
  const auto refusal = [&sent]() -> std::string {
    try {
      Step::decode(sent, 1, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      return error.what();
    }
    return "";
  };
  ASSERT_EQ(sent[last], std::byte{1});
  sent[last] = std::byte{2};
  EXPECT_EQ(refusal(), "") << "the other one";
  for (const int place : {3, 255}) {
    sent[last] = std::byte(place);
    EXPECT_EQ(refusal(), "internal: a sequence chunk names guide " + std::to_string(place) + " of a step with 2");
  }
}

// Whatever a step says, of sampling, segments and patches too: no byte of it can come otherwise without a trace.
TEST(Step, EveryByteThatComesOtherwiseIsSeen) {
  Step step = sample_step();
  step.predicted_s = 0.25;
  step.chunks[0].sampling = SamplingParams{.temperature = 0.5, .logit_bias = {{4, 0.5f}}, .stop_tokens = {3}};
  step.chunks[0].sampling->guide = std::make_shared<const std::string>("ra+");
  step.chunks[0].sampling->generated = {5, 6};
  step.chunks[0].token_type_ids = {0, 1, 1};
  step.chunks[1].patches = {0.5f, -1, 2};
  const std::vector<std::byte> sent = step.encode(0);
  const std::uint64_t digest = digest64(sent);
  EXPECT_EQ(Step::decode(sent, 0, 2).digest, digest);
  EXPECT_EQ(Step::decode(sent, 0, 2).chunks[0].sampling, step.chunks[0].sampling);
  std::size_t seen = 0, refused = 0;
  for (std::size_t at = 0; at < sent.size(); ++at) {
    std::vector<std::byte> bytes = sent;
    bytes[at] ^= std::byte{1};
    try {
      seen += Step::decode(bytes, 0, 2).digest != digest ? 1 : 0;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_EQ(seen + refused, sent.size());
  EXPECT_GT(seen, sent.size() / 2);
}

TEST(Report, RoundTripAndSizeBound) {
  Report report;
  report.step = 3;
  report.digest = {1, 2, 3, 4};
  report.received = 5;
  report.link_bytes = 5ull << 40;
  report.frame_bytes = 7ull << 40;
  report.busy_s = 6.5;
  report.exposed_s = 7.5;
  report.compute_s = 8.5;
  report.launched_as_graph = true;
  report.pages_verified = 9;
  report.pages_refetched = 10;
  for (int i = 0; i < 5; ++i) {
    SampledRow row{.token = i, .logprob = -0.5f, .target_logprob = -2, .finite = i != 3, .top = {}};
    for (int k = 0; k < TopLogits::kTop; ++k) row.top.emplace_back(k, -1.0f * k);
    report.rows.push_back(row);
  }
  const std::vector<std::byte> bytes = report.encode();
  EXPECT_LE(bytes.size(), Report::max_bytes(5));
  EXPECT_EQ(Report::max_bytes(0), Report().encode().size());
  const Report copy = Report::decode(bytes);
  EXPECT_EQ(copy.link_bytes, report.link_bytes);
  EXPECT_EQ(copy.frame_bytes, report.frame_bytes);
  EXPECT_EQ(std::tuple(copy.busy_s, copy.exposed_s, copy.compute_s), std::tuple(6.5, 7.5, 8.5));
  EXPECT_TRUE(copy.launched_as_graph);
  EXPECT_EQ(copy.pages_verified, 9u);
  EXPECT_EQ(copy.pages_refetched, 10u);
  EXPECT_EQ(copy.digest, report.digest);
  EXPECT_EQ(copy.received, 5u);
  ASSERT_EQ(copy.rows.size(), 5u);
  EXPECT_FALSE(copy.rows[3].finite);
  EXPECT_EQ(copy.rows[4].top, report.rows[4].top);
  EXPECT_THROW(Report::decode(std::span(bytes).first(bytes.size() - 1)), Error);
}

bool is_report(std::span<const std::byte> bytes) {
  try {
    Report::decode(bytes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// What fuzzing begins with is of today's format, or it begins with nothing.
TEST(Step, SeedsOfTheFuzzTargetCanBeRead) {
  int reports = 0, steps = 0, riders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(COMPUTRON_STEP_SEEDS)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string seed(std::istreambuf_iterator<char>(in), {});
    const auto bytes = std::as_bytes(std::span(seed)).subspan(1);
    if (is_report(bytes)) {
      ++reports;
    } else {
      Step step;  // as tests/fuzz/step_wire.cpp has it
      EXPECT_NO_THROW(step = Step::decode(bytes, seed[0] % 3, 3)) << entry.path();
      for (const SequenceChunk& chunk : step.chunks) riders += chunk.rider ? 1 : 0;
      ++steps;
    }
  }
  EXPECT_GE(reports, 2);
  EXPECT_GE(steps, 5);
  EXPECT_GE(riders, 2);
}

}  // namespace
}  // namespace computron
