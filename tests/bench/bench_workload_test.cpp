// computron bench workload on small models: what it counts, not how fast it is.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <memory>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const TinyModel kModel = {.layers = 2, .heads = 4, .head_dim = 16, .ffn = 128, .vocab = 192, .seed = 21};

class BenchWorkload : public ::testing::Test {
 protected:
  void SetUp() override { write_tiny_checkpoint(folder_ / "tiny.h5", kModel); }

  // Two ids for one file; half a second of requests.
  JobOutcome run(int tp, int pp, const std::vector<std::string>& more) {
    const std::string file = (folder_ / "tiny.h5").string();
    std::vector<std::string> command = {served_program(),
                                        "bench",
                                        "workload",
                                        "--quiet",
                                        "--model",
                                        "a=" + file,
                                        "--model",
                                        "b=" + file,
                                        "--page-size",
                                        "64KiB",
                                        "--threads",
                                        "1",
                                        "--link-gbps",
                                        "0.5",
                                        "--coded",
                                        "off",
                                        "--max-seqs",
                                        "4",
                                        "--duration",
                                        "0.5",
                                        "--prompt-tokens",
                                        "5",
                                        "--max-tokens",
                                        "2",
                                        fmt::format("--tp={}", tp),
                                        fmt::format("--pp={}", pp)};
    command.insert(command.end(), more.begin(), more.end());
    return run_job(tp * pp, command, folder_ / "", healthy_limit_s());
  }
  json measure(int tp, int pp, std::vector<std::string> more) {
    const std::filesystem::path result = folder_ / "metrics.json";
    more.insert(more.end(), {"--rates", "20,30", "--json", result.string()});
    const JobOutcome outcome = run(tp, pp, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("rates 20,30 a second"));
    std::ifstream file(result);
    return json::parse(file);
  }

  TemporaryFolder folder_;
};

// With room for both models each is moved once, whatever the times: the two worlds agree on every count.
TEST_F(BenchWorkload, BothWorldsServeTheSameRequests) {
  for (const auto& [tp, pp] : {std::pair(1, 1), std::pair(2, 2)}) {
    const json metrics = measure(tp, pp, {"--resident", "2", "--policy", "fifo,balanced"});
    const std::size_t requests = metrics.at("requests");
    EXPECT_GT(requests, 10u);
    ASSERT_EQ(metrics.at("policies").size(), 2u);
    for (const json& run : metrics.at("policies")) {
      const json &real = run.at("real"), &predicted = run.at("virtual");
      EXPECT_EQ(real.at("latency_s_by_request").size(), requests);
      EXPECT_EQ(predicted.at("latency_s_by_request").size(), requests);
      EXPECT_EQ(real.at("swaps"), 2);
      EXPECT_EQ(predicted.at("swaps"), 2);
      EXPECT_GT(real.at("bytes"), 0);
      EXPECT_EQ(real.at("bytes"), predicted.at("bytes"));
      for (const json& latency : real.at("latency_s_by_request")) EXPECT_GT(latency, 0);
      EXPECT_GT(run.at("learned").at("request_s"), 0);
    }
  }
}

TEST_F(BenchWorkload, APoolForOneModelMakesThemTakeTurns) {
  const json metrics = measure(1, 1, {"--resident", "1", "--policy", "balanced"});
  const json& run = metrics.at("policies").at(0);
  EXPECT_GT(run.at("real").at("swaps"), 2);
  EXPECT_GT(run.at("virtual").at("swaps"), 2);
}

TEST_F(BenchWorkload, RefusesMoreResidentModelsThanThereAre) {
  const JobOutcome outcome = run(1, 1, {"--rates", "1,1", "--resident", "3"});
  EXPECT_EQ(outcome.exit_code, 64) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("--resident 3"));
}

}  // namespace
}  // namespace computron::test
