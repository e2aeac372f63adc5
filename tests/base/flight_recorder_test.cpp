#include "computron/base/flight_recorder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "computron/base/error.h"
#include "computron/base/time.h"
#include "computron/base/trace.h"

namespace computron {
namespace {

namespace fs = std::filesystem;

class FlightTest : public ::testing::Test {
 protected:
  FlightTest() {
    std::string name = (fs::temp_directory_path() / "flight-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~FlightTest() override { fs::remove_all(folder_); }
  fs::path only_file() const {
    fs::path found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_TRUE(found.empty()) << "two files";
      found = entry.path();
    }
    return found;
  }
  fs::path folder_;
};

TEST_F(FlightTest, WhatWasRecordedIsThereAfterAKill) {
  const pid_t child = fork();
  if (child == 0) {
    FlightRecorder recorder(folder_, /*job=*/77, /*rank=*/2, /*ranks=*/4);
    Trace trace(0, &recorder);
    for (std::uint64_t step = 1; step <= 2000; ++step) {
      const TraceSpan span(&trace, TraceTrack::kCompute, "step", "a model with a long name", {"step", step});
      const TraceSpan sum(&trace, TraceTrack::kCommunication, "all-reduce", {}, {"sum", 3 * step}, {"bytes", 8});
    }
    trace.begin(TraceTrack::kCommunication, "all-reduce", 5.5, {}, {{"sum", 6001}});
    recorder.note_alive(12.5, 11.5);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  const Flight flight = read_flight(only_file());
  EXPECT_EQ(flight.info.job, 77u);
  EXPECT_EQ(flight.info.rank, 2);
  EXPECT_EQ(flight.info.ranks, 4);
  EXPECT_EQ(flight.info.process, child);
  EXPECT_EQ(flight.info.alive_s, 12.5);
  EXPECT_EQ(flight.info.moved_s, 11.5);
  ASSERT_EQ(flight.records.size(), kFlightRecords);
  const FlightRecord& last = flight.records.back();
  EXPECT_EQ(last.number, 2000u * 4 + 1);
  EXPECT_EQ(last.kind, FlightRecord::kBegin);
  EXPECT_EQ(text_of(last.name), "all-reduce");
  EXPECT_EQ(last.time_s, 5.5);
  EXPECT_EQ(last.step, 2000u) << "of the span before, which has one";
  EXPECT_EQ(last.detail, 6001u);
  const FlightRecord& before = flight.records[kFlightRecords - 2];
  EXPECT_EQ(before.kind, FlightRecord::kEnd);
  EXPECT_EQ(text_of(before.name), "step");
  EXPECT_EQ(text_of(before.model), "a model with a");
  EXPECT_EQ(flight.records.front().number + kFlightRecords - 1, last.number) << "the oldest first, none missing";
}

TEST_F(FlightTest, TheMainThreadDoesTheInnermostSpan) {
  FlightRecorder recorder(folder_, 1, 0, 1);
  Trace trace(0, &recorder);
  const auto now_does = [&](std::string_view name, bool waits, std::uint64_t step, std::uint32_t detail) {
    const Doing doing = recorder.doing();
    EXPECT_EQ(text_of(doing.name), name);
    EXPECT_EQ(doing.waits, waits);
    EXPECT_EQ(doing.step, step);
    EXPECT_EQ(doing.detail, detail);
  };
  now_does("", false, 0, 0);
  {
    const TraceSpan step(&trace, TraceTrack::kCompute, "step", {}, {"step", 9}, {"rows", 4});
    now_does("step", false, 9, 4);
    {
      const TraceSpan sum(&trace, TraceTrack::kCommunication, "all-reduce", {}, {"sum", 31});
      now_does("all-reduce", true, 9, 31);
      const TraceSpan copy(&trace, TraceTrack::kCopy, "verify");  // as another thread would
      now_does("all-reduce", true, 9, 31);
    }
    now_does("step", false, 9, 4);
  }
  now_does("", false, 9, 0);
  EXPECT_EQ(recorder.moves(), 6u);
}

// Rank 0 takes reports of other groups, which have steps of their own, within its own pass.
TEST_F(FlightTest, ControlIsNoMoveAndLeavesTheStepOfWhatEnclosesIt) {
  FlightRecorder recorder(folder_, 1, 0, 1);
  Trace trace(0, &recorder);
  const TraceSpan step(&trace, TraceTrack::kCompute, "step", {}, {"step", 900});
  const std::uint64_t moves = recorder.moves();
  { const TraceSpan reports(&trace, TraceTrack::kControl, "take reports", {}, {"step", 12}); }
  EXPECT_EQ(recorder.moves(), moves);
  EXPECT_EQ(recorder.doing().step, 900u);
  const TraceSpan sum(&trace, TraceTrack::kCommunication, "all-reduce", {}, {"sum", 31});
  EXPECT_EQ(recorder.moves(), moves + 1);
  EXPECT_EQ(recorder.doing().step, 900u);
}

TEST_F(FlightTest, ACleanEndLeavesNoFile) {
  {
    FlightRecorder recorder(folder_, 1, 0, 1);
    EXPECT_EQ(only_file(), recorder.path());
    recorder.remove();
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FlightTest, AFolderThatIsNamedMustBeThereAndAnyOtherMayBeMissing) {
  const std::string missing = folder_ / "no-such-folder";
  try {
    FlightRecorder recorder(missing, 1, 0, 1);
    FAIL() << "made a file in a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCannotCreate);
    EXPECT_NE(std::string(error.what()).find(missing), std::string::npos);
  }
  setenv("TMPDIR", missing.c_str(), 1);
  FlightRecorder recorder("", 1, 0, 1);
  unsetenv("TMPDIR");
  EXPECT_TRUE(recorder.path().empty());
  EXPECT_NE(recorder.why().find(missing), std::string::npos);
  recorder.record(FlightRecord::kBegin, static_cast<std::uint8_t>(TraceTrack::kCompute), "goes on", 1, {}, {}, 0);
  EXPECT_EQ(recorder.moves(), 1u);
}

TEST_F(FlightTest, FilesOfDeadJobsDoNotPileUpWhereNobodyAskedForThem) {
  setenv("TMPDIR", folder_.c_str(), 1);
  const FlightRecorder lives("", /*job=*/1000, /*rank=*/2, 4);
  const auto dies = [&](std::uint64_t job, int rank) {
    const pid_t child = fork();
    if (child == 0) {
      FlightRecorder recorder("", job, rank, 4);
      recorder.note_alive(now_s() + static_cast<double>(job), 0);
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  };
  for (std::uint64_t job = 0; job < kFlightsKept + 3; ++job) dies(job, 2);
  dies(1, 3);
  std::ofstream(folder_ / "computron-0000000000000000-rank2.flight.txt") << "somebody else's";
  std::ofstream(folder_ / "computron-x-rank2.flight") << "damaged";
  FlightRecorder next("", 2000, 2, 4);
  unsetenv("TMPDIR");
  std::vector<std::uint64_t> left;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().string().ends_with("-rank2.flight") && fs::file_size(entry.path()) > 10) {
      left.push_back(read_flight(entry.path()).info.job);
    }
  }
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::uint64_t>{3, 4, 5, 6, 1000, 2000}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 9) << "another rank's, and two that are none";
}

TEST_F(FlightTest, AJobThatEndsInOrderTakesAllItsFilesAlong) {
  FlightRecorder zero(folder_, 7, 0, 3), two(folder_, 7, 2, 3), other(folder_, 8, 0, 3);
  zero.remove_all();
  EXPECT_EQ(only_file(), other.path());
}

TEST_F(FlightTest, FilesThatAreNoRecordsAreRefusedByName) {
  const auto refused = [&](const fs::path& path, ExitCode code) {
    try {
      read_flight(path);
      ADD_FAILURE() << path << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    }
  };
  refused(folder_ / "absent", ExitCode::kNoInput);
  std::ofstream(folder_ / "short") << "short";
  refused(folder_ / "short", ExitCode::kData);
  std::ofstream(folder_ / "other") << std::string(kFlightHeaderBytes + kFlightRecords * sizeof(FlightRecord), 'x');
  refused(folder_ / "other", ExitCode::kData);
}

}  // namespace
}  // namespace computron
