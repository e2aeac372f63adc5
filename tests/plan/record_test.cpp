// Records read back: whole, torn anywhere, damaged, and files that are none.
#include "computron/plan/record.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/plan/recorded_run.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

RecordedRun small_run() {
  VirtualGroups job{.pages = {8, 8}, .groups = {{.models = {0, 1}, .frames = 12}, {.models = {1}}}, .policy = "fifo"};
  for (int i = 0; i < 4; ++i) job.add(static_cast<ModelId>(i % 2), 2, 0.01 * i);
  return recorded_run(job);
}

// What it throws, and with which code.
void expect_refused(const std::string& bytes, ExitCode code, const std::string& why) {
  const RecordFile file;
  try {
    read_record(file.write(bytes));
    ADD_FAILURE() << "read: " << why;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(why));
    EXPECT_THAT(error.what(), HasSubstr(file.path()));
  }
}

TEST(Record, HoldsWhatWasRecordedInOrder) {
  const RecordedRun run = small_run();
  const Record record = run.record();
  EXPECT_EQ(record.requests, 4u);
  EXPECT_EQ(record.inputs.size(), 5u);
  EXPECT_EQ(record.completions.size(), 4u);
  ASSERT_TRUE(record.end);
  EXPECT_EQ(record.end->why, RecordEnd::kAllDone);
  EXPECT_EQ(record.why_cut(), "");
  EXPECT_EQ(record.unreported, 0u);
  EXPECT_EQ(record.lost_bytes, 0u);
  EXPECT_NEAR(record.wall_s(), run.run.end_s, 1e-9);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(record.steps[g].size(), run.run.groups[g].steps);
    for (std::size_t k = 0; k < record.steps[g].size(); ++k) {
      const Record::Step& step = record.steps[g][k];
      EXPECT_EQ(step.sent.id, step.report.step);
      EXPECT_LE(step.reports_before, k);
      if (step.reports_before > 0) {
        EXPECT_LE(record.steps[g][step.reports_before - 1].report.reported_s, step.sent.sent_s);
      }
    }
  }
}

// A job that is killed leaves any part of the file.
TEST(Record, TornAnywhereIsItsWholeFrames) {
  const RecordedRun run = small_run();
  const std::string bytes = run.bytes();
  const std::size_t header_end = record_head().size() + framed(encode(run.header)).size();
  std::vector<std::size_t> ends;  // of whole frames
  std::size_t at = header_end;
  for (const RecordedEvent& event : run.events) ends.push_back(at += framed(encode(event)).size());
  const RecordFile file;
  for (std::size_t length = header_end; length < bytes.size(); ++length) {
    const Record record = read_record(file.write(bytes.substr(0, length)));
    const auto whole = static_cast<std::size_t>(std::ranges::upper_bound(ends, length) - ends.begin());
    std::size_t events = record.inputs.size() + record.completions.size() + record.unreported;
    for (const auto& steps : record.steps) events += 2 * steps.size();
    ASSERT_EQ(events, whole) << length;
    ASSERT_EQ(record.lost_bytes, length - (whole == 0 ? header_end : ends[whole - 1])) << length;
    ASSERT_FALSE(record.end);
    ASSERT_THAT(record.why_cut(), HasSubstr("went down"));
  }
}

TEST(Record, BehindADamagedFrameNothingIsRead) {
  const RecordedRun run = small_run();
  std::string bytes = run.bytes();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  const RecordFile file;
  const Record record = read_record(file.write(bytes));
  EXPECT_FALSE(record.end);
  EXPECT_GT(record.lost_bytes, 0u);
  bytes.resize(bytes.size() / 2 + 100, '\0');  // as a file system may leave it
  EXPECT_FALSE(read_record(file.write(bytes + std::string(1000, '\0'))).end);
}

TEST(Record, EndsThatAreNotTheJobs) {
  RecordedRun run = small_run();
  const std::pair<RecordEnd::Why, const char*> ends[] = {
      {RecordEnd::kStopped, "stopped"}, {RecordEnd::kLimit, "limit at 0.250 s"}, {RecordEnd::kTooSlow, "keep up"}};
  for (const auto& [why, text] : ends) {
    run.events.back() = RecordEnd{.time_s = 0.25, .why = why};
    EXPECT_THAT(run.record().why_cut(), HasSubstr(text));
  }
}

TEST(Record, FilesThatAreNoneAreRefused) {
  expect_refused("", ExitCode::kData, "is not a record");
  expect_refused("{\"custom_id\": \"a line of requests\"}", ExitCode::kData, "is not a record");
  expect_refused(record_head(kRecordVersion + 1), ExitCode::kData, fmt::format("version {}", kRecordVersion + 1));
  expect_refused(record_head(), ExitCode::kData, "ends before its first frame");
  try {
    read_record("/nowhere/at/all");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoInput);
  }
}

TEST(Record, NonsenseInWholeFramesIsToldWithItsPlace) {
  const RecordedRun run = small_run();
  const std::string head = record_head() + framed(encode(run.header));
  const auto with = [&head](const RecordedEvent& event) { return head + framed(encode(event)); };
  RecordedRequest request{.prompt_tokens = 1};
  request.model = 2;
  expect_refused(with(request), ExitCode::kData, "a request for a model");
  RecordedStep step;
  step.group = 2;
  expect_refused(with(step), ExitCode::kData, "a group that is not there");
  step.group = 0;
  expect_refused(with(step), ExitCode::kData, "step out of range");
  step.stages.emplace_back().fetches.push_back({.model = 0, .page = 8, .frame = 0, .after = {}});
  expect_refused(with(step), ExitCode::kData, "a fetch of a page");
  expect_refused(with(RecordedReport{}), ExitCode::kData, "a report of no step");
  expect_refused(with(RecordedCompletion{.group = 7}), ExitCode::kData, "a group that is not there");
  expect_refused(head + framed({std::byte{9}}), ExitCode::kData, "unknown kind of event");
  expect_refused(head + framed({std::byte{2}}), ExitCode::kData, "shorter than its content");
  expect_refused(record_head() + framed({std::byte{1}}), ExitCode::kData, "shorter");
}

}  // namespace
}  // namespace computron::test
