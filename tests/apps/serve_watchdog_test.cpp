// Ranks that hang: the others end the job and say which it was. Ranks that were only stopped for a while go on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/apps/serve_job.h"
#include "tests/support/beside.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const TinyModel kModel{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 128, .seed = 31};

// With --watchdog 0.05, twice what is reported: 2 s without progress of a step, 6 s without a sign of a rank.
constexpr char kFactor[] = "0.05";
constexpr double kStep_s = 2, kSilence_s = 6, kBeyond_s = 5;

class Hang : public ::testing::Test {
 protected:
  Hang() { write_tiny_checkpoint(folder_ / "tiny.h5", kModel); }

  // Would run for minutes.
  ServeJob long_job(int tp, int pp) const {
    ServeJob job{.tp = tp, .pp = pp, .models = {{"tiny", folder_ / "tiny.h5"}}};
    job.more = {"--max-seqs", "1", "--watchdog", kFactor};
    for (int i = 0; i < 20000; ++i) job.lines.push_back(completion_line(fmt::format("r{}", i), "tiny", {1, 2}, 40));
    return job;
  }
  // Computes nothing after its first request.
  ServeJob idle_job(int tp, int pp) const {
    ServeJob job = long_job(tp, pp);
    auto late = nlohmann::json::parse(job.lines[1]);
    late["arrival"] = 1e6;
    job.lines = {job.lines[0], late.dump()};
    job.more.insert(job.more.end(), {"--replay"});
    return job;
  }

  struct Stopped {
    std::unique_ptr<RunningServe> job;
    int rank;
    double limit_s;
  };
  // A job of which that rank does not go on once there are results.
  Stopped stop_rank(const ServeJob& job, int rank, double limit_s) {
    Stopped stopped{std::make_unique<RunningServe>(job, folder_), rank, limit_s};
    wait_for_results(*stopped.job);
    EXPECT_EQ(kill(stopped.job->mpi().rank_process(rank), SIGSTOP), 0);
    return stopped;
  }
  static void wait_for_results(RunningServe& job) {
    std::error_code absent;
    for (std::uintmax_t bytes = 0; job.mpi().running() && (absent || bytes == 0);) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      bytes = fs::file_size(job.partial_output(), absent);
    }
    ASSERT_TRUE(job.mpi().running()) << job.finish(0).job.errors;
  }
  static void expect_named(Stopped& stopped) {
    const Served served = stopped.job->finish((stopped.limit_s + kBeyond_s) * failing_limit_s() / 10);
    EXPECT_EQ(served.job.exit_code, 79) << served.job.errors;
    EXPECT_THAT(served.job.errors, AllOf(HasSubstr("watchdog: "), HasSubstr(fmt::format(": rank {} on ", stopped.rank)),
                                         HasSubstr("nothing has been heard of it")));
    EXPECT_FALSE(fs::exists(stopped.job->output())) << "an unfinished job must not look finished";
  }

  TemporaryFolder folder_;
};

// They mostly wait, and side by side.
TEST_F(Hang, TheJobIsGoneWithTheNameOfTheRankThatStandsStill) {
  std::vector<Stopped> jobs;
  jobs.push_back(stop_rank(long_job(2, 1), 1, kStep_s));
  jobs.push_back(stop_rank(long_job(1, 2), 1, kStep_s));
  jobs.push_back(stop_rank(long_job(2, 1), 0, kSilence_s));
  jobs.push_back(stop_rank(idle_job(2, 1), 1, kSilence_s));
  for (Stopped& stopped : jobs) expect_named(stopped);
}

// Nobody hangs: rank 0 has work, or lines that it holds back, and what it waits for never comes, for it would have to
// come from rank 0 itself. An input that is open may well stay so.
TEST_F(Hang, AJobThatWaitsForItselfIsGoneWithWhatItWaitsForAndOneThatWaitsForItsInputIsNot) {
  struct Case {
    int ranks;
    std::string policy, input, waits_for;
  };
  const Case cases[] = {{2, "throughput", "over", "waits for the end of the input before it decides anything"},
                        {1, "fifo", "over", "has nothing to serve and waits for more"},
                        {1, "throughput", "open", ""},
                        {1, "balanced", "open", ""}};
  std::vector<std::unique_ptr<MpiJob>> jobs;
  for (const Case& c : cases) {
    const fs::path folder = folder_ / (c.policy + c.input);
    fs::create_directory(folder);
    const std::vector<std::string> command = {
        beside_test("stalled_job"), folder_ / "tiny.h5", c.policy, c.input, kFactor, folder};
    jobs.push_back(std::make_unique<MpiJob>(c.ranks, command, folder));
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(cases[i].policy + " " + cases[i].input);
    const JobOutcome outcome = jobs[i]->wait(healthy_limit_s());
    EXPECT_FALSE(outcome.timed_out) << outcome.errors;
    EXPECT_EQ(outcome.exit_code, cases[i].waits_for.empty() ? 0 : 79) << outcome.errors;
    if (cases[i].waits_for.empty()) {
      EXPECT_THAT(outcome.errors, Not(HasSubstr("watchdog: ")));
    } else {
      EXPECT_THAT(outcome.errors,
                  AllOf(HasSubstr("watchdog: not all is done and no step is sent"), HasSubstr(": rank 0 on "),
                        HasSubstr(cases[i].waits_for), HasSubstr("; two lines are held back")));
    }
  }
}

TEST_F(Hang, AJobThatWasStoppedAndContinuedGoesOn) {
  ServeJob job = long_job(2, 1);
  RunningServe running(job, folder_);
  wait_for_results(running);
  const auto signal_all = [&](int number) {
    for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(kill(running.mpi().rank_process(rank), number), 0);
  };
  signal_all(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::duration<double>(kSilence_s + 1));
  const auto before = fs::file_size(running.partial_output());
  signal_all(SIGCONT);
  while (running.mpi().running() && fs::file_size(running.partial_output()) <= before) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_TRUE(running.mpi().running()) << running.finish(0).job.errors;
  ASSERT_EQ(kill(running.mpi().rank_process(0), SIGTERM), 0);
  const Served served = running.finish(failing_limit_s());
  EXPECT_EQ(served.job.exit_code, 75) << served.job.errors;
}

}  // namespace
}  // namespace computron::test
