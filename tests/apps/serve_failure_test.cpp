// Jobs that cannot go on end soon, with the right exit code and one line that names the thing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>
#include <tuple>

#include "computron/device/device.h"
#include "computron/ops/cpu_probe.h"
#include "tests/apps/serve_job.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const TinyModel kModel{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 128, .seed = 31};
constexpr char kTensor[] = "layers.1.mlp.down.weight";  // of the last stage, cut along its columns

class Failure : public ::testing::Test {
 protected:
  Failure() { write_tiny_checkpoint(path("whole"), kModel); }

  fs::path path(const std::string& name) const { return folder_ / (name + ".h5"); }
  ServeJob job(int tp, int pp, const std::string& file = "whole") const {
    return {.tp = tp, .pp = pp, .models = {{"tiny", path(file)}}, .lines = {completion_line("r", "tiny", {1, 2}, 4)}};
  }

  // Each job ends in time with one of `codes`, without results, and says in its one line what `thing` is about. Most of
  // a failed job's time is mpirun's waiting, so they run side by side.
  void expect_failures(const std::vector<ServeJob>& jobs, const ::testing::Matcher<int>& code,
                       const std::string& thing) {
    std::vector<std::unique_ptr<RunningServe>> running;
    for (const ServeJob& job : jobs) running.push_back(std::make_unique<RunningServe>(job, folder_));
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(fmt::format("tp {} pp {} ranks {}", jobs[i].tp, jobs[i].pp, jobs[i].ranks));
      expect_failed(running[i]->finish(failing_limit_s()), code, thing);
    }
  }
  // On one rank, and on two, where the first to fail must not leave the other waiting.
  void expect_failure(const ServeJob& job, const ::testing::Matcher<int>& code, const std::string& thing) {
    ServeJob on_two = job;
    on_two.tp = 2;
    expect_failures({job, on_two}, code, thing);
  }

  // The program as it runs behind a line of shell.
  fs::path program_after(const std::string& line) const {
    fs::path script = folder_ / "program";
    write_lines(script, {"#!/bin/sh", line, fmt::format("exec '{}' \"$@\"", served_program())});
    fs::permissions(script, fs::perms::owner_all);
    return script;
  }

  // Open MPI 5.0.7's mpirun (Debian 13) ends by SIGSEGV instead.
  bool mpirun_takes_two_command_lines() const {
    return run_job(1, {"true", ":", "-n", "1", "true"}, folder_ / "", failing_limit_s()).exit_code == 0;
  }

  TemporaryFolder folder_;

  static void expect_failed(const Served& served, const ::testing::Matcher<int>& code, const std::string& thing) {
    EXPECT_THAT(served.job.exit_code, code) << served.job.errors;
    const auto lines = served.job.own_lines();
    ASSERT_EQ(lines.size(), 1u) << served.job.errors;
    EXPECT_THAT(lines[0], HasSubstr(thing));
    EXPECT_EQ(served.results.size(), 0u);
  }
};

TEST_F(Failure, UnknownOptionIsUsage) {
  ServeJob wrong = job(1, 1);
  wrong.more = {"--no-such-option"};
  expect_failure(wrong, 64, "--no-such-option");
}

TEST_F(Failure, UnknownInstructionSetIsUsage) {
  ServeJob wrong = job(1, 1);
  wrong.program = program_after("export COMPUTRON_MAX_ISA=sse2");
  expect_failure(wrong, 64,
                 "COMPUTRON_MAX_ISA is 'sse2': it must be one of " +
                     std::string(instruction_set() == "neon" ? "neon" : "avx2, avx512, avx512_vnni, avx512_bf16, amx"));
}

// Their sums would differ in bits.
TEST_F(Failure, RanksWithDifferentVectorsAreRefused) {
  if (instruction_set() == "avx2" || instruction_set() == "neon") {
    GTEST_SKIP() << "this processor has one width of vectors";
  }
  ServeJob wrong = job(2, 1);
  wrong.program = program_after("[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 0 ] || export COMPUTRON_MAX_ISA=avx2");
  expect_failures({wrong}, 78, "the instruction set");
}

// A launcher kills all ranks when the first has failed.
TEST_F(Failure, ARankThatIsQuickerLetsRankZeroSpeak) {
  ServeJob wrong = job(2, 1);
  wrong.program = program_after("[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 0 ] && sleep 1");
  wrong.more = {"--no-such-option"};
  const Served served = RunningServe(wrong, folder_).finish(failing_limit_s());
  expect_failed(served, 64, "--no-such-option");
  EXPECT_THAT(served.job.own_lines(), Each(Not(HasSubstr("rank"))));
}

// As where a file of options is missing on one host.
TEST_F(Failure, WhatIsWrongOnOneRankOnlyIsSaidByThatRank) {
  if (!mpirun_takes_two_command_lines()) GTEST_SKIP() << "this mpirun takes no two command lines";
  ServeJob two = job(2, 1);
  two.ranks = 1;
  two.more = {":", "-n", "1", served_program(), "serve", "--no-such-option"};
  expect_failed(RunningServe(two, folder_).finish(failing_limit_s()), 64, "computron: rank 1 ");
}

TEST_F(Failure, UnreadableSizeIsUsage) {
  ServeJob wrong = job(1, 1);
  wrong.device_memory = "9999999999G";
  expect_failure(wrong, 64, "--device-memory: '9999999999G' is not a size");
}

TEST_F(Failure, MissingCheckpointIsNoInput) { expect_failure(job(1, 1, "absent"), 66, path("absent")); }

TEST_F(Failure, DamagedCheckpointIsBadData) {
  fs::copy_file(path("whole"), path("damaged"));
  damage_tensor(path("damaged"), kTensor);
  expect_failures({job(1, 1, "damaged"), job(2, 1, "damaged"), job(1, 2, "damaged")}, 65, kTensor);
}

TEST_F(Failure, TruncatedCheckpointIsBadData) {
  fs::copy_file(path("whole"), path("short"));
  fs::resize_file(path("short"), fs::file_size(path("short")) - 1);
  expect_failure(job(1, 1, "short"), 65, path("short"));
}

TEST_F(Failure, MissingTensorDoesNotFit) {
  write_tiny_checkpoint(path("incomplete"), kModel, kTensor);
  expect_failure(job(1, 1, "incomplete"), 78, kTensor);
}

TEST_F(Failure, ShardLargerThanThePoolDoesNotFit) {
  ServeJob wrong = job(1, 1);
  wrong.device_memory = "128KiB";
  expect_failure(wrong, 78, "tiny");
}

TEST_F(Failure, MoreMemoryThanTheNodeHasIsRefusedBeforeLoading) {
  ServeJob wrong = job(1, 1);
  wrong.device_memory = "1000TiB";
  expect_failure(wrong, 71, "pool 128.00 TiB");  // as many frames as can be counted
}

TEST_F(Failure, MeshThatRanksDoNotFillIsRefused) {
  ServeJob one = job(3, 1), two = job(3, 1);
  one.ranks = 1;
  two.ranks = 2;
  expect_failures({one, two}, AnyOf(64, 78), "3");
}

TEST_F(Failure, MeshThatTheModelDoesNotFillIsRefused) {
  expect_failures({job(1, 3)}, 78, "tiny");  // of two layers
  TinyModel narrow = kModel;
  narrow.heads = 2;
  write_tiny_checkpoint(path("narrow"), narrow);
  expect_failures({job(3, 1, "narrow")}, 78, "tiny");
}

TEST_F(Failure, DeviceThatIsNotThere) {
  if (cuda_device_present()) GTEST_SKIP() << "this machine has a GPU";
  ServeJob on_gpu = job(1, 1);
  on_gpu.device = "cuda";
  expect_failure(on_gpu, 69, "cuda");
}

TEST_F(Failure, WhatOnlyTheCpuDeviceHas) {
  ServeJob emulated = job(1, 1);
  emulated.device = "cuda";
  emulated.more = {"--link-gbps", "1"};
  expect_failure(emulated, 64, "--link-gbps");
}

TEST_F(Failure, SumsInAnOrderThatIsNotReproducible) {
  ServeJob wrong = job(4, 1);
  wrong.device = "cuda";
  wrong.more = {"--transport", "nccl", "--reproducible"};
  expect_failures({wrong}, 64, "--reproducible");
}

TEST_F(Failure, MissingRequestFileIsNoInput) {
  ServeJob wrong = job(1, 1);
  wrong.requests = (folder_ / "no-requests.jsonl").string();
  expect_failure(wrong, 66, "no-requests.jsonl");
}

TEST_F(Failure, MissingModelListIsNoInput) {
  ServeJob wrong = job(1, 1);
  wrong.more = {"--models", (folder_ / "no-models.json").string()};
  wrong.models.clear();
  expect_failure(wrong, 66, "no-models.json");
}

TEST_F(Failure, UnwritableOutputCannotBeCreated) {
  ServeJob wrong = job(1, 1);
  wrong.output = (folder_ / "no-such-folder" / "out.jsonl").string();
  expect_failure(wrong, 73, "no-such-folder");
}

TEST_F(Failure, UnwritableTraceIsRefusedBeforeServing) {
  ServeJob wrong = job(1, 1);
  wrong.more = {"--trace", (folder_ / "no-such-folder" / "trace.json").string()};
  expect_failure(wrong, 73, "no-such-folder");
}

TEST_F(Failure, OutputThatIsAFolderCannotBeCreated) {
  ServeJob wrong = job(1, 1);
  wrong.output = (folder_ / "folder").string();
  fs::create_directory(wrong.output);
  expect_failure(wrong, 73, "folder");
}

TEST_F(Failure, DamageOnTheLinkNamesRankModelAndPage) {
  for (const auto& [tp, pp, rank] : {std::tuple(1, 1, 0), {2, 1, 1}, {1, 2, 1}, {2, 1, 0}}) {
    SCOPED_TRACE(fmt::format("tp {} pp {} rank {}", tp, pp, rank));
    ServeJob damaged = job(tp, pp);
    damaged.program = injected_program();
    const bool coded = on_cpu() && tp + pp > 2;  // as they cross a GPU's link, where a bit need not matter
    damaged.more = {"--inject-flip", fmt::format("{}:1:2", rank), "--coded", coded ? "on" : "off"};
    if (!on_cpu()) damaged.more.insert(damaged.more.end(), {"--verify-swap", "first"});
    const Served served = RunningServe(damaged, folder_).finish(failing_limit_s());
    EXPECT_EQ(served.job.exit_code, 69) << served.job.errors;
    ASSERT_EQ(served.job.own_lines().size(), 1u) << served.job.errors;
    EXPECT_THAT(served.job.own_lines()[0],
                ::testing::ContainsRegex(fmt::format("rank {} .*page [0-9]+ of model tiny.*digest", rank)));
    EXPECT_EQ(served.results.size(), 0u);
  }
}

// What is decoded is the same, or the job ends and says which page, and that no copy mends it.
TEST_F(Failure, DamageInHostMemoryIsFoundWhereverItIs) {
  const auto answer = [](const Served& served) { return served.results.choice("r").dump(); };
  const Served whole = RunningServe(job(1, 1), folder_).finish(healthy_limit_s());
  ASSERT_EQ(whole.job.exit_code, 0) << whole.job.errors;
  std::vector<std::unique_ptr<RunningServe>> running;
  const std::vector<unsigned> bits = {0, 9, 40, 1000, 9000, 70001, 200003, 300007};
  for (const unsigned bit : bits) {
    ServeJob damaged = job(1, 1);
    damaged.program = injected_program();
    damaged.more = {"--inject-host-flip", fmt::format("0:1:{}", bit), "--coded", "on", "--verify-swap", "every"};
    running.push_back(std::make_unique<RunningServe>(damaged, folder_));
  }
  int found = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    SCOPED_TRACE(bits[i]);
    const Served served = running[i]->finish(failing_limit_s());
    if (served.job.exit_code == 0) {
      EXPECT_EQ(answer(served), answer(whole));
      continue;
    }
    ++found;
    EXPECT_EQ(served.job.exit_code, 69) << served.job.errors;
    ASSERT_EQ(served.job.own_lines().size(), 1u) << served.job.errors;
    EXPECT_THAT(served.job.own_lines()[0],
                AllOf(HasSubstr("rank 0 "), HasSubstr("page 1 of model tiny"), HasSubstr("damaged in host memory")));
    EXPECT_EQ(served.results.size(), 0u);
  }
  EXPECT_GT(found, 3);
}

TEST_F(Failure, WhatIsNotTheSameOnAllRanksIsNamedBeforeLoading) {
  const std::vector<std::string> properties = {"the program's build id", "the MPI library", "the option --seed",
                                               "the checkpoint of model tiny"};
  std::vector<std::unique_ptr<RunningServe>> running;
  for (const std::string& property : properties) {
    ServeJob unlike = job(2, 1);
    unlike.program = injected_program();
    unlike.more = {"--inject-mismatch", "1:" + property};
    running.push_back(std::make_unique<RunningServe>(unlike, folder_));
  }
  for (std::size_t i = 0; i < properties.size(); ++i) {
    SCOPED_TRACE(properties[i]);
    expect_failed(running[i]->finish(failing_limit_s()), 78, properties[i]);
  }
}

// Started with two command lines.
TEST_F(Failure, RanksWithOtherOptionsAreRefused) {
  if (!mpirun_takes_two_command_lines()) GTEST_SKIP() << "this mpirun takes no two command lines";
  ServeJob two = job(2, 1);
  two.ranks = 1;
  const std::string model = "tiny=" + path("whole").string(), nowhere = folder_ / "nowhere.jsonl";
  two.more = {":",   "-n",         "1",         served_program(), "serve", "--quiet", "--model",
              model, "--requests", "/dev/null", "--output",       nowhere, "--tp",    "2"};
  const Served served = RunningServe(two, folder_).finish(failing_limit_s());
  EXPECT_EQ(served.job.exit_code, 78) << served.job.errors;
  ASSERT_EQ(served.job.own_lines().size(), 1u) << served.job.errors;
  EXPECT_THAT(served.job.own_lines()[0],
              AllOf(HasSubstr("rank 1 "), HasSubstr("the option --"), HasSubstr("on rank 0")));
  EXPECT_FALSE(fs::exists(nowhere));
}

TEST_F(Failure, RankThatDivergesIsNamedWithStepAndFieldAndNothingOfThatStepIsWritten) {
  const std::vector<std::tuple<int, int, int, std::string>> cases = {
      {2, 1, 1, "lengths"}, {1, 2, 1, "page_table"}, {2, 1, 0, "sequences"}};
  std::vector<std::unique_ptr<RunningServe>> running;
  for (const auto& [tp, pp, rank, field] : cases) {
    ServeJob diverging = job(tp, pp);
    diverging.program = injected_program();
    diverging.more = {"--inject-divergence", fmt::format("{}:1:{}", rank, field)};
    running.push_back(std::make_unique<RunningServe>(diverging, folder_));
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [tp, pp, rank, field] = cases[i];
    SCOPED_TRACE(field);
    expect_failed(running[i]->finish(failing_limit_s()), 70,
                  fmt::format("rank {} disagrees with rank 0 after step 1: {} differ", rank, field));
    EXPECT_EQ(fs::file_size(running[i]->partial_output()), 0u);
  }
}

// A job that would run for minutes: two models, room for one, a slow link, a swap a request.
class LongJob : public Failure {
 protected:
  ServeJob long_job() {
    TinyModel other = kModel;
    ++other.seed;  // or the two would have all pages in common
    write_tiny_checkpoint(path("other"), other);
    ServeJob long_one = job(2, 1);
    long_one.models.push_back({"other", path("other")});
    long_one.device_memory = "512KiB";
    long_one.more = {"--max-seqs", "1", "--policy", "fifo", "--link-gbps", "0.005"};
    long_one.lines.clear();
    for (int i = 0; i < 4000; ++i) {
      long_one.lines.push_back(completion_line(fmt::format("r{}", i), i % 2 == 0 ? "tiny" : "other", {1, 2, 3}, 40));
    }
    return long_one;
  }
};
class KilledRank : public LongJob, public ::testing::WithParamInterface<int> {};

// True once the job has written results; false if it ended before.
bool wait_for_results(RunningServe& job) {
  std::error_code absent;
  while (job.mpi().running()) {
    const auto bytes = fs::file_size(job.partial_output(), absent);
    if (!absent && bytes > 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST_P(KilledRank, EndsTheJob) {
  RunningServe job(long_job(), folder_);
  ASSERT_TRUE(wait_for_results(job)) << job.finish(0).job.errors;
  const pid_t victim = job.mpi().rank_process(GetParam());
  ASSERT_NE(victim, 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_NE(job.finish(failing_limit_s()).job.exit_code, 0);
  EXPECT_FALSE(fs::exists(job.output())) << "an unfinished job must not look finished";
}

// Of the process's limits, that of core dumps which holds now: a number of bytes, or "unlimited".
std::string core_limit(pid_t process) {
  std::ifstream limits(fmt::format("/proc/{}/limits", process));
  for (std::string line, name = "Max core file size"; std::getline(limits, line);) {
    if (!line.starts_with(name)) continue;
    std::string now;
    std::istringstream(line.substr(name.size())) >> now;
    return now;
  }
  return {};
}

// Whatever the shell allows.
TEST_F(LongJob, LeavesNoCoreDumpUnlessAskedTo) {
  if (sanitized()) GTEST_SKIP() << "the address sanitizer allows none";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &before), 0);
  const rlimit most{before.rlim_max, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_CORE, &most), 0);
  const std::string allowed = core_limit(getpid());
  for (const bool asked : {false, true}) {
    ServeJob job = long_job();
    if (asked) job.more.emplace_back("--core");
    RunningServe running(job, folder_);
    ASSERT_TRUE(wait_for_results(running)) << running.finish(0).job.errors;
    for (const int rank : {0, 1}) EXPECT_EQ(core_limit(running.mpi().rank_process(rank)), asked ? allowed : "0");
  }
  setrlimit(RLIMIT_CORE, &before);
}

// Nothing to say anything to: results are files.
TEST_F(Failure, ClosedOutputsLoseNothing) {
  const fs::path mute = path("mute");
  std::ofstream(mute) << fmt::format("#!/bin/sh\nexec {} \"$@\" >&- 2>&-\n", served_program());
  fs::permissions(mute, fs::perms::owner_all);
  ServeJob silent = job(2, 1);
  silent.program = mute;
  const Served served = serve(silent, folder_);
  EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
  EXPECT_EQ(served.results.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Victims, KilledRank, ::testing::Values(0, 1),
                         [](const auto& test) { return fmt::format("rank{}", test.param); });

}  // namespace
}  // namespace computron::test
