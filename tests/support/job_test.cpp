// The driver of MPI jobs, with shells in the program's place.
#include "tests/support/job.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

namespace computron::test {
namespace {

constexpr double kLimitS = 60;  // far beyond what any of these takes

std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

// False for a zombie too: an orphan may stay one where process 1 reaps nothing.
bool runs(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const auto name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

TEST(MpiJob, GivesCodeAndBothOutputs) {
  const TemporaryFolder folder;
  // The first to fail ends the other, which must have spoken by then. What Hydra gives others than rank 0 to read never
  // ends.
  const std::string both =
      "cd " + (folder / ".").string() +
      "; touch ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; while [ ! -e 0 ] || [ ! -e 1 ]; do sleep 0.01; done; ";
  const auto outcome = run_job(
      2,
      shell("echo out ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; echo 'computron: no' >&2; [ -n \"$PMI_RANK\" ] || cat; " +
            both + "exit 5"),
      folder / ".", kLimitS);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_EQ(outcome.exit_code, 5) << outcome.errors;
  EXPECT_NE(outcome.output.find("out 1"), std::string::npos);
  ASSERT_EQ(outcome.own_lines().size(), 2u);
  EXPECT_EQ(outcome.own_lines()[0], "computron: no");
}

TEST(MpiJob, EndsAHangingJob) {
  const TemporaryFolder folder;
  MpiJob job(2, shell("exec sleep 1000"), folder / ".");
  pid_t rank = 0;
  while (job.running() && (rank = job.rank_process(1)) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_NE(rank, 0);
  EXPECT_TRUE(job.wait(/*limit_s=*/0.1).timed_out);
  EXPECT_FALSE(job.running());
  while (runs(rank)) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // or the test's time limit
}

TEST(MpiJob, ReportsAKilledRank) {
  const TemporaryFolder folder;
  MpiJob job(2, shell("exec sleep 1000"), folder / ".");
  pid_t rank = 0;
  while (job.running() && (rank = job.rank_process(1)) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_NE(rank, 0);
  ASSERT_EQ(kill(rank, SIGKILL), 0);
  const auto outcome = job.wait(kLimitS);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.errors;
}

TEST(Results, AreFoundByTheirId) {
  const TemporaryFolder folder;
  write_lines(folder / "r.jsonl",
              {R"({"custom_id": "b", "response": {"body": null}, "error": {"code": "duplicate_custom_id"}})",
               R"({"custom_id": "b", "response": {"body": {"choices": [{"token_ids": [4, 5]}]}}, "error": null})",
               R"({"custom_id": null, "response": {"body": null}, "error": {"code": "invalid_json"}})",
               R"({"custom_id": "c", "response": {"body": null}, "error": {"code": "too_deep"}})"});
  const Results results(folder / "r.jsonl");
  EXPECT_EQ(results.size(), 4u);
  EXPECT_EQ(results.tokens("b"), (std::vector<int>{4, 5}));
  EXPECT_EQ(results.error_code("b"), "");
  EXPECT_EQ(results.error_code("c"), "too_deep");
  EXPECT_THROW(results.choice("c"), std::runtime_error);
  EXPECT_THROW(results.line("d"), std::runtime_error);
  write_lines(folder / "twice.jsonl", {R"({"custom_id": "b", "error": null})", R"({"custom_id": "b", "error": null})"});
  EXPECT_THROW(Results(folder / "twice.jsonl"), std::runtime_error);
}

TEST(CompletionLine, IsARequestOfTheBatchFormat) {
  const auto line = nlohmann::json::parse(completion_line("x", "m", {1, 2}, 3, {{"echo", true}}));
  EXPECT_EQ(line, nlohmann::json::parse(R"({"custom_id": "x", "method": "POST", "url": "/v1/completions",
      "body": {"model": "m", "prompt": [1, 2], "max_tokens": 3, "echo": true}})"));
}

}  // namespace
}  // namespace computron::test
