// Records of jobs in virtual time, where everything is known: played again they give what they came from, and under
// other conditions what a run under those gives.
#include "computron/plan/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/plan/recorded_run.h"

namespace computron::test {
namespace {

constexpr double kSame = 1e-6;  // of a second: sums of many

// Four models of which two fit, on one group; requests known at once, or coming in over two seconds. Crooked times: a
// rounding error decides nothing.
VirtualGroups swapping(const std::string& policy, bool arriving) {
  VirtualGroups job{.pages = {40, 40, 40, 40},
                    .page_s = 0.0011317,
                    .pass_s = 0.0103741,
                    .groups = {{.models = {0, 1, 2, 3}, .frames = 100}},
                    .max_seqs = 4,
                    .policy = policy};
  for (int i = 0; i < 40; ++i) job.add(static_cast<ModelId>(i * 7 % 4), 3 + i % 5, arriving ? 0.0516713 * i : 0);
  return job;
}

VirtualGroups two_groups(const std::string& policy) {
  VirtualGroups job = swapping(policy, /*arriving=*/true);
  job.groups = {{.models = {0, 1, 2, 3}, .frames = 60}, {.models = {1, 2, 3}, .stages = 2, .frames = 40}};
  return job;
}

class Replayed : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, Replayed, testing::Values("fifo", "balanced", "throughput"));

double mean_latency_s(const VirtualRun& run) {
  double sum_s = 0;
  for (const Completion& completion : run.completions) sum_s += completion.finished_s - completion.arrival_s;
  return sum_s / static_cast<double>(run.completions.size());
}

void expect_same(const ReplayOutcome& outcome, const RecordedRun& from) {
  EXPECT_NEAR(outcome.wall_s, from.run.end_s, kSame);
  EXPECT_NEAR(outcome.mean_latency_s, mean_latency_s(from.run), kSame);
  EXPECT_NEAR(outcome.exposed_s, from.run.exposed_s, kSame * 100);
  EXPECT_EQ(outcome.swaps, from.run.swaps);
  EXPECT_EQ(outcome.served, from.run.completions.size());
}

TEST_P(Replayed, TheSameStepsTakeTheSameTime) {
  for (const bool arriving : {false, true}) {
    const RecordedRun from = recorded_run(swapping(GetParam(), arriving));
    ASSERT_GE(from.run.swaps, 4u);
    expect_same(replay_steps(from.record(), {}), from);
  }
}

TEST_P(Replayed, TheSameDecisionsAreMadeAgain) {
  for (const bool arriving : {false, true}) {
    const RecordedRun from = recorded_run(swapping(GetParam(), arriving));
    const ReplayOutcome outcome = replay_requests(from.record(), {});
    expect_same(outcome, from);
    EXPECT_EQ(outcome.steps, from.run.groups[0].steps);
    EXPECT_EQ(outcome.moved_bytes, from.moved_bytes[0]);
  }
}

TEST_P(Replayed, RequestsDecidedAgainAtHalfTheLinkRateAreARunThatHadIt) {
  VirtualGroups job = swapping(GetParam(), /*arriving=*/true);
  const RecordedRun from = recorded_run(job);
  job.page_s *= 2;  // and the scheduler is told, as it is by --link-gbps
  const RecordedRun slower = recorded_run(job);
  ASSERT_GT(slower.run.end_s, from.run.end_s);
  expect_same(replay_requests(from.record(), {.link_scale = 0.5}), slower);
  expect_same(replay_requests(from.record(), {.link_bytes_per_s = kVirtualPage / job.page_s}), slower);
}

TEST_P(Replayed, RanksThatComputeTwiceAsFast) {
  VirtualGroups job = swapping(GetParam(), /*arriving=*/false);
  const RecordedRun from = recorded_run(job);
  job.pass_s /= 2;
  const RecordedRun faster = recorded_run(job);
  const ReplayOutcome outcome = replay_requests(from.record(), {.compute_scale = 2});
  EXPECT_NEAR(outcome.wall_s, faster.run.end_s, 0.05 * faster.run.end_s);  // the scheduler believes the old ones first
  EXPECT_LT(outcome.wall_s, 0.95 * from.run.end_s);
}

TEST_P(Replayed, ALargerPoolIsARunThatHadIt) {
  VirtualGroups job = swapping(GetParam(), /*arriving=*/true);
  const RecordedRun from = recorded_run(job);
  job.groups[0].frames = 180;
  const RecordedRun larger = recorded_run(job);
  ASSERT_LT(larger.run.swaps, from.run.swaps);
  expect_same(replay_requests(from.record(), {.device_bytes = 180 * kVirtualPage}), larger);
}

TEST_P(Replayed, GroupsKeepTheirTimes) {
  const RecordedRun from = recorded_run(two_groups(GetParam()));
  const Record record = from.record();
  ASSERT_EQ(record.steps.size(), 2u);
  for (std::size_t g = 0; g < 2; ++g) EXPECT_EQ(record.steps[g].size(), from.run.groups[g].steps);
  expect_same(replay_steps(record, {}), from);
  const ReplayOutcome again = replay_requests(record, {});
  EXPECT_NEAR(again.wall_s, from.run.end_s, 0.02 * from.run.end_s);
  EXPECT_EQ(again.served, from.run.completions.size());
}

// The last eight pages of each model are an adapter's, in slots of a page's 256th part; the pool of the record has
// slots for one of them.
RecordedRun with_slots() {
  RecordedRun from = recorded_run(swapping("balanced", /*arriving=*/true));
  for (ShardLayout& layout : from.header.layouts) {
    layout.slot_bytes = layout.page_bytes / 256;
    for (PageId page = 32; page < 40; ++page) {
      layout.used_bytes[page] = layout.slot_bytes;
      layout.adapter_pages.push_back(page);
    }
  }
  from.header.groups[0].options.adapter_slots = 8;
  return from;
}

TEST(ReplayWithSlots, APoolOfAnotherSizeIsDividedAnew) {
  const RecordedRun from = with_slots();
  EXPECT_GT(replay_requests(from.record(), {}).swaps, 8u);
  EXPECT_EQ(replay_requests(from.record(), {.device_bytes = 180 * kVirtualPage}).swaps, 4u);
}

TEST(ReplayWithSlots, MoreThanThereMayBeAreRefused) {
  RecordedRun from = with_slots();
  from.header.groups[0].options.adapter_slots = (1 << 24) + 1;
  try {
    replay_requests(from.record(), {});
    FAIL() << "so many slots are kept";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("16777217 slots: more than the 16777216 of a replay"));
  }
}

TEST(Replay, TheSameStepsOnASlowerLinkMoveTheSameBytesAndTakeLonger) {
  const RecordedRun from = recorded_run(swapping("fifo", /*arriving=*/false));
  const Record record = from.record();
  const ReplayOutcome half = replay_steps(record, {.link_scale = 0.5}), twice = replay_steps(record, {.link_scale = 2});
  EXPECT_EQ(half.moved_bytes, from.moved_bytes[0]);
  EXPECT_GT(half.wall_s, from.run.end_s);
  EXPECT_LT(twice.wall_s, from.run.end_s);
  // Every page in the way costs its second half again, and no more than all that was moved.
  EXPECT_LE(half.wall_s, from.run.end_s + static_cast<double>(from.moved_bytes[0]) / kVirtualPage * 0.0011317 + kSame);
}

// Pages of which seven tenths cross the link: the record says so, and other pages of the same bytes, too.
TEST(Replay, CodedPagesAreMovedCoded) {
  VirtualGroups job = swapping("fifo", /*arriving=*/false);
  job.page_s *= 4;
  const RecordedRun raw = recorded_run(job);
  job.link_share = 0.7;
  const RecordedRun from = recorded_run(job);
  ASSERT_LT(from.run.end_s, 0.9 * raw.run.end_s);
  const Record record = from.record();
  EXPECT_EQ(record.header.layouts[0].link_bytes, virtual_layout(40, 4, 0.7).link_bytes);
  expect_same(replay_steps(record, {}), from);
  const ReplayOutcome again = replay_requests(record, {});
  expect_same(again, from);
  EXPECT_EQ(again.moved_bytes, from.moved_bytes[0]);
  const auto raw_bytes = static_cast<double>(raw.moved_bytes[0]);  // of about as many pages
  EXPECT_NEAR(static_cast<double>(from.moved_bytes[0]), 0.7 * raw_bytes, 0.02 * raw_bytes);
  const ReplayOutcome cut = replay_requests(record, {.page_bytes = kVirtualPage / 2});
  EXPECT_NEAR(cut.wall_s, from.run.end_s, 0.1 * from.run.end_s);
}

TEST(Replay, PagesOfAnotherSizeMoveTheSameModels) {
  const RecordedRun from = recorded_run(swapping("fifo", /*arriving=*/false));
  for (const std::size_t page : {kVirtualPage / 4, kVirtualPage / 2, 2 * kVirtualPage}) {
    const ReplayOutcome outcome = replay_requests(from.record(), {.page_bytes = page});
    EXPECT_EQ(outcome.served, 40u) << page;
    EXPECT_NEAR(outcome.wall_s, from.run.end_s, 0.1 * from.run.end_s) << page;
  }
}

TEST(Replay, ASequenceThatStoppedStopsThere) {
  VirtualGroups job = swapping("balanced", /*arriving=*/true);
  RecordedRun from = recorded_run(job);
  for (RecordedEvent& event : from.events) {  // it might have generated more
    if (auto* request = std::get_if<RecordedRequest>(&event)) request->max_tokens += 10;
  }
  const ReplayOutcome outcome = replay_requests(from.record(), {});
  EXPECT_EQ(outcome.served, from.run.completions.size());
  std::uint64_t passes = 0;
  for (const RecordedEvent& event : from.events) {
    if (const auto* step = std::get_if<RecordedStep>(&event)) passes += step->rows > 0 ? 1 : 0;
  }
  EXPECT_NEAR(outcome.wall_s, from.run.end_s, 0.25 * from.run.end_s);
  EXPECT_LT(outcome.steps, 2 * passes);  // ten tokens more each would be three times as many
}

TEST(Replay, RequestsWithoutAnEndAreLeftOut) {
  RecordedRun from = recorded_run(swapping("fifo", /*arriving=*/false));
  std::erase_if(from.events, [](const RecordedEvent& event) {
    const auto* end = std::get_if<RecordedCompletion>(&event);
    return end != nullptr && end->id >= 30;
  });
  const Record record = from.record();
  EXPECT_EQ(unfinished_requests(record), 10u);
  EXPECT_EQ(replay_requests(record, {}).served, 30u);
  EXPECT_NEAR(replay_steps(record, {}).wall_s, from.run.end_s, kSame);
}

// They come when there is room, not when they came.
TEST(Replay, WhatWaitedForRoomIsSubmittedWhenThereIsSome) {
  VirtualGroups job = swapping("throughput", /*arriving=*/false);
  job.max_waiting = 8;
  RecordedRun from = recorded_run(job);
  for (RecordedEvent& event : from.events) {
    auto* request = std::get_if<RecordedRequest>(&event);
    if (request == nullptr || request->id < 8) continue;
    request->flags |= RecordedRequest::kDeferred;
    request->submitted_s = 1e6;
  }
  const ReplayOutcome outcome = replay_requests(from.record(), {});
  EXPECT_EQ(outcome.served, 40u);
  EXPECT_LT(outcome.wall_s, 10 * from.run.end_s);
}

TEST(Replay, ADecisionThatTookTimeTakesItAgain) {
  RecordedRun from = recorded_run(swapping("fifo", /*arriving=*/false));
  // As if rank 0 had taken a millisecond to begin with: everything else is later by it.
  constexpr double kLater_s = 0.001;
  for (RecordedEvent& event : from.events) {
    if (auto* step = std::get_if<RecordedStep>(&event)) step->sent_s += kLater_s;
    if (auto* report = std::get_if<RecordedReport>(&event)) report->reported_s += kLater_s;
  }
  EXPECT_NEAR(replay_steps(from.record(), {}).wall_s, from.run.end_s + kLater_s, kSame);
}

TEST(Replay, ModelsThatFitNoPoolAreNamed) {
  const RecordedRun from = recorded_run(swapping("fifo", /*arriving=*/false));
  try {
    replay_requests(from.record(), {.device_bytes = 2 * kVirtualPage});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("model-0"));
  }
}

TEST(Replay, MorePagesThanAPoolMayHaveAreRefused) {
  const RecordedRun from = recorded_run(swapping("fifo", /*arriving=*/false));
  const WhatIf tiny_pages{.device_bytes = std::size_t{1} << 40, .page_bytes = 1 << 15};
  EXPECT_THROW(replay_requests(from.record(), tiny_pages), ConfigError);
}

}  // namespace
}  // namespace computron::test
