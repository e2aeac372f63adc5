// What the files of a job's ranks tell, and the command that reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "computron/base/trace.h"
#include "computron/base/watchdog.h"
#include "src/apps/postmortem_report.h"
#include "tests/apps/program.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

FlightRecord record(std::uint64_t number, FlightRecord::Kind kind, TraceTrack track, std::string_view name,
                    std::uint64_t step, std::uint32_t detail) {
  FlightRecord record{.number = number, .time_s = 100 + 0.001 * static_cast<double>(number), .step = step};
  record.detail = detail;
  record.kind = kind;
  record.track = static_cast<std::uint8_t>(track);
  std::copy(name.begin(), name.end(), record.name.begin());
  return record;
}

// A rank in the sum of that number of that step, which moved last at `moved_s`.
Flight rank_in_sum(int rank, std::uint64_t step, std::uint32_t sum, double moved_s, double clock_offset_s = 0) {
  Flight flight{.info = {.job = 7, .rank = rank, .ranks = 3, .process = 100 + rank, .host = "node"}, .records = {}};
  flight.info.host += std::to_string(rank);
  flight.info.clock_offset_s = clock_offset_s;
  flight.info.moved_s = flight.info.alive_s = moved_s - clock_offset_s;
  flight.records.push_back(record(5, FlightRecord::kBegin, TraceTrack::kCompute, "step", step, 2));
  flight.records.push_back(record(6, FlightRecord::kBegin, TraceTrack::kCommunication, "all-reduce", step, sum));
  flight.records.push_back(record(7, FlightRecord::kEnd, TraceTrack::kCopy, "fetch", step, 3));
  return flight;
}

TEST(Postmortem, TheRankThatMovedLastBeforeTheOthersStoppedFirst) {
  const std::vector<Flight> flights = {rank_in_sum(0, 9, 40, 1200), rank_in_sum(1, 9, 40, 1197.5, /*offset=*/900),
                                       rank_in_sum(2, 9, 39, 1200.1)};
  EXPECT_EQ(first_to_stop(flights).rank, 1) << "on its own clock it is by far the earliest";
  EXPECT_THAT(first_to_stop(flights).why, HasSubstr("2.5 s before"));
  const std::string report = postmortem_report(flights, 4);
  EXPECT_THAT(report, HasSubstr("rank 1 on node1, in all-reduce 40 of step 9, stopped first"));
  EXPECT_THAT(report, AllOf(HasSubstr("the last 4 events"), HasSubstr("ends   fetch 3 of step 9")));
}

TEST(Postmortem, WhereAllMovedToTheEndTheOneThatIsBehind) {
  const std::vector<Flight> flights = {rank_in_sum(0, 9, 40, 1200), rank_in_sum(1, 9, 40, 1200.02),
                                       rank_in_sum(2, 9, 39, 1200.1)};
  EXPECT_EQ(first_to_stop(flights).rank, 2);
  EXPECT_THAT(first_to_stop(flights).why, HasSubstr("step 9, sum 39"));
}

TEST(Postmortem, TheRankThatAWatchdogGaveUp) {
  std::vector<Flight> flights = {rank_in_sum(0, 9, 40, 1200), rank_in_sum(1, 9, 40, 1201)};
  flights[0].records.push_back(record(8, FlightRecord::kBegin, TraceTrack::kControl, kWatchdogEnds, 9, /*rank=*/1));
  EXPECT_EQ(first_to_stop(flights).rank, 1) << "though it moved again when it was continued, to be ended";
  EXPECT_THAT(first_to_stop(flights).why, HasSubstr("watchdog of rank 0"));
}

TEST(Postmortem, OtherJobsAreLeftOutAndMissingFilesAreNamed) {
  Flight other = rank_in_sum(0, 3, 1, 500);
  other.info.job = 6;
  const std::vector<Flight> all = {rank_in_sum(2, 9, 40, 1200), other, rank_in_sum(0, 9, 40, 1200)};
  const auto flights = flights_of_job(all);
  ASSERT_EQ(flights.size(), 2u);
  EXPECT_EQ(flights[0].info.rank, 0);
  EXPECT_THAT(postmortem_report(flights, 1), HasSubstr("   1  no file"));
  EXPECT_EQ(flights_of_job(all, 6).at(0).info.job, 6u) << "named";
  EXPECT_TRUE(flights_of_job(all, 5).empty());
  EXPECT_THAT(list_of_jobs(all), AllOf(HasSubstr("0000000000000006       3      1"),
                                       HasSubstr("0000000000000007       3      2  1970-01-01 00:20:00")));
}

TEST(Postmortem, AJobThatStillRunsIsNotTheOneThatWentDown) {
  Flight running = rank_in_sum(0, 3, 1, 9000);
  running.info.job = 8;
  running.info.process = getpid();
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  running.info.host = host;
  EXPECT_EQ(flights_of_job({running, rank_in_sum(0, 9, 40, 1200)}).at(0).info.job, 7u);
  EXPECT_EQ(flights_of_job({running}, 8).size(), 1u) << "unless it is named";
  EXPECT_TRUE(flights_of_job({running}).empty());
  EXPECT_THAT(list_of_jobs({running}), HasSubstr("is running"));
}

using PostmortemProgram = ProgramTest;

// The file of a process that has ended in a step.
std::string dead_rank_in(const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    FlightRecorder recorder(folder, 7, 0, 1);
    Trace trace(0, &recorder);
    trace.begin(TraceTrack::kCompute, "step", now_s(), "opt", {{"step", 12}});
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  return folder + "/computron-0000000000000007-rank0.flight";
}

TEST_F(PostmortemProgram, ReadsAFolderOrFiles) {
  const std::string folder = file("flights");
  fs::create_directory(folder);
  const std::string path = dead_rank_in(folder);
  std::ofstream(fs::path(folder) / "other.flight") << "somebody else's";
  FlightRecorder running(folder, 8, 0, 1);  // of this process
  running.note_alive(now_s() + 100, now_s() + 100);
  for (const std::string& given : {folder, path}) {
    const Outcome outcome = run({"postmortem", given});
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("in step 0 of step 12, model opt, stopped first"));
    EXPECT_EQ(outcome.errors.find("left out: " + folder + "/other.flight") != std::string::npos, given == folder);
  }
  EXPECT_THAT(run({"postmortem", folder, "--job", "8"}).output, HasSubstr("job 0000000000000008, 1 ranks"));
  EXPECT_EQ(run({"postmortem", folder, "--job", "9"}).code, 66);
  EXPECT_EQ(run({"postmortem", folder, "--job", "x"}).code, 64);
  EXPECT_THAT(run({"postmortem", folder, "--list"}).output, HasSubstr("is running"));
  fs::remove(path);
  EXPECT_THAT(run({"postmortem", folder}).errors, HasSubstr("all jobs here are running"));
  running.remove();
  const Outcome nothing = run({"postmortem", folder});
  EXPECT_EQ(nothing.code, 66);
  EXPECT_THAT(nothing.errors, HasSubstr(folder));
}

}  // namespace
}  // namespace computron::test
