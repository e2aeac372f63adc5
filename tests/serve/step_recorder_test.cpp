// The recorder alone: its limit, disks that fail or do not keep up, and what a reader makes of the file.
#include "computron/serve/step_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>

#include "computron/plan/record.h"
#include "tests/serve/one_page_header.h"
#include "tests/storage/failing_calls.h"

namespace computron {
namespace {

using testing::HasSubstr;

PlannedStep planned(StepId id) {
  PlannedStep planned;
  planned.step.id = id;
  planned.step.chunks.emplace_back().tokens = {1};
  planned.step.stages.resize(1);
  return planned;
}

Request request(RequestId id) {
  Request request;
  request.id = id;
  request.prompt.assign(40, 5);
  return request;
}

class StepRecorderTest : public testing::Test {
 protected:
  StepRecorderTest() : path_(testing::TempDir() + "steps_" + std::to_string(getpid())) {}
  ~StepRecorderTest() override { std::filesystem::remove(path_); }

  // `steps` of them, each sent and reported.
  static void run(StepRecorder& recorder, StepId steps) {
    for (StepId id = 1; id <= steps; ++id) {
      const double now = static_cast<double>(id);
      recorder.sent(0, planned(id), now);
      Report slow, fast;
      slow.exposed_s = 3;
      fast.exposed_s = 2;
      const StageTimes times{.compute_s = 0.5, .link_bytes = id, .link_busy_s = 1};
      recorder.reported(0, id, std::span(&times, 1), std::vector{slow, fast}, /*tp=*/2, now + 0.5);
    }
  }
  std::string path_;
};

TEST_F(StepRecorderTest, WhatWasToldStandsInTheFile) {
  StepRecorder recorder({.file = path_});
  recorder.begin(test::one_page_header({"m"}));
  recorder.submitted(request(0), /*deferred=*/false, 0.25);
  recorder.submitted(request(1), /*deferred=*/true, 0.5);
  recorder.input_ended(/*closed=*/true, /*deferred=*/true, 0.75);
  run(recorder, 100);
  recorder.ended(ended(request(0)));
  recorder.finish(/*all_done=*/true, 200);
  EXPECT_TRUE(recorder.is_whole());
  EXPECT_THAT(recorder.summary(), HasSubstr("2 requests and 100 steps"));
  const Record record = read_record(path_);
  EXPECT_EQ(record.requests, 2u);
  ASSERT_EQ(record.steps.at(0).size(), 100u);
  EXPECT_EQ(record.steps[0][9].sent.id, 10u);
  EXPECT_EQ(record.steps[0][9].reports_before, 9u);
  EXPECT_EQ(record.steps[0][9].report.stages.at(0).times.link_bytes, 10u);
  EXPECT_EQ(record.steps[0][9].report.stages[0].exposed_s, 3);  // of the slowest rank
  EXPECT_EQ(record.completions.size(), 1u);
  ASSERT_TRUE(record.end);
  EXPECT_EQ(record.end->why, RecordEnd::kAllDone);
  EXPECT_EQ(record.end->time_s, 200);
}

TEST_F(StepRecorderTest, BehindItsLimitNothingMoreIsRecorded) {
  constexpr std::size_t kLimit = 4000;
  StepRecorder recorder({.file = path_, .limit_bytes = kLimit});
  recorder.begin(test::one_page_header({"m"}));
  run(recorder, 1000);
  recorder.finish(/*all_done=*/true, 2000);
  EXPECT_LE(std::filesystem::file_size(path_), kLimit);
  EXPECT_GT(std::filesystem::file_size(path_), kLimit - 400);
  EXPECT_FALSE(recorder.is_whole());
  EXPECT_THAT(recorder.summary(), HasSubstr("reached its limit"));
  const Record record = read_record(path_);
  ASSERT_TRUE(record.end);
  EXPECT_EQ(record.end->why, RecordEnd::kLimit);
  EXPECT_EQ(record.lost_bytes, 0u);
  EXPECT_GT(record.steps.at(0).size(), 10u);
  EXPECT_LT(record.steps[0].size(), 100u);
}

TEST_F(StepRecorderTest, ALimitThatIsTooSmallForAnythingIsKept) {
  StepRecorder recorder({.file = path_, .limit_bytes = 100});
  recorder.begin(test::one_page_header({"m"}));
  run(recorder, 10);
  recorder.finish(/*all_done=*/true, 20);
  EXPECT_FALSE(recorder.is_whole());
  EXPECT_LE(std::filesystem::file_size(path_), 100u);
  EXPECT_THROW(read_record(path_), Error);
}

TEST_F(StepRecorderTest, ADiskThatFailsIsSaidAndEndsTheRecordAlone) {
  FailingCalls calls;
  std::atomic<bool> fails = false;
  calls.fail_while([&fails] { return fails ? ENOSPC : 0; });
  StepRecorder recorder({.file = path_}, calls);
  recorder.begin(test::one_page_header({"m"}));
  run(recorder, 10);
  while (std::filesystem::file_size(path_) == 0) usleep(1000);
  fails = true;
  run(recorder, 100000);
  recorder.finish(/*all_done=*/true, 1);
  EXPECT_FALSE(recorder.is_whole());
  EXPECT_THAT(recorder.summary(), HasSubstr("incomplete: cannot write"));
  EXPECT_THAT(recorder.summary(), HasSubstr(std::strerror(ENOSPC)));
  EXPECT_FALSE(read_record(path_).end);
}

TEST_F(StepRecorderTest, ADiskThatDoesNotKeepUpEndsTheRecordAndHoldsUpNobody) {
  FailingCalls calls;
  std::atomic<bool> slow = true;
  calls.fail_while([&slow] {
    while (slow) usleep(1000);
    return 0;
  });
  StepRecorder recorder({.file = path_, .most_waiting_bytes = 10000}, calls);
  recorder.begin(test::one_page_header({"m"}));
  run(recorder, 10000);
  slow = false;
  recorder.finish(/*all_done=*/true, 20000);
  EXPECT_FALSE(recorder.is_whole());
  EXPECT_THAT(recorder.summary(), HasSubstr("did not keep up"));
  const Record record = read_record(path_);
  EXPECT_GT(record.steps.at(0).size(), 10u);
  EXPECT_LT(record.steps[0].size(), 300u);
}

TEST_F(StepRecorderTest, HashesOfPromptsWherePrefixesAreShared) {
  for (const bool shares : {false, true}) {
    StepRecorder recorder({.file = path_});
    recorder.begin(test::one_page_header({"m"}, shares));
    recorder.submitted(request(0), /*deferred=*/false, 0);
    recorder.finish(/*all_done=*/false, 1);
    EXPECT_TRUE(recorder.is_whole());
    const Record record = read_record(path_);
    EXPECT_EQ(std::get<RecordedRequest>(record.inputs.at(0)).prefix.size(), shares ? 2u : 0u);
    EXPECT_EQ(record.end->why, RecordEnd::kStopped);
  }
}

}  // namespace
}  // namespace computron
