// computron bench swap on small models: what it counts, not how fast it is.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <tuple>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const TinyModel kModel = {.layers = 4, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 192, .seed = 21};
constexpr int kRequests = 3;

class BenchSwap : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    write_tiny_checkpoint(*folder_ / "tiny.h5", kModel);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::vector<std::string> command_of(int tp, int pp, const std::vector<std::string>& more) {
    const std::string file = (*folder_ / "tiny.h5").string();
    std::vector<std::string> command = {served_program(), "bench", "swap", "--quiet", "--model", "a=" + file};
    for (const char* argument : {"--page-size", "64KiB", "--threads", "1", "--link-gbps", "0.5", "--warmup", "1"}) {
      command.emplace_back(argument);
    }
    for (const std::string& argument :
         {fmt::format("--tp={}", tp), fmt::format("--pp={}", pp), fmt::format("--requests={}", kRequests)}) {
      command.push_back(argument);
    }
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  // With a second id for the same file, and the metrics as JSON.
  static json measure(int tp, int pp, std::vector<std::string> more = {}) {
    const std::filesystem::path result = *folder_ / fmt::format("{}x{}.json", tp, pp);
    more.insert(more.end(), {"--model", "b=" + (*folder_ / "tiny.h5").string(), "--json", result.string()});
    const JobOutcome outcome = run_job(tp * pp, command_of(tp, pp, more), *folder_ / "", healthy_limit_s());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("emulated, 0.5 GB/s"));
    std::ifstream file(result);
    return json::parse(file);
  }
  static std::unique_ptr<TemporaryFolder> folder_;
};

std::unique_ptr<TemporaryFolder> BenchSwap::folder_;

// Every request moves all of a shard but what the one spare frame keeps, the same on the ranks of a stage (about the
// same where it is coded), and has its answer when that has been copied.
TEST_F(BenchSwap, CountsWhatEveryRankMoved) {
  for (const auto& [tp, pp, coded] : {std::tuple(1, 1, "off"), std::tuple(2, 1, "off"), std::tuple(2, 2, "on")}) {
    const json metrics = measure(tp, pp, {"--coded", coded});
    const double tolerance = coded == std::string("on") ? 0.1 : 0;
    ASSERT_EQ(metrics.at("requests").size(), static_cast<std::size_t>(kRequests));
    for (const json& request : metrics.at("requests")) {
      ASSERT_EQ(request.at("ranks").size(), static_cast<std::size_t>(tp * pp));
      for (int rank = 0; rank < tp * pp; ++rank) {
        const json& copies = request.at("ranks").at(rank);
        EXPECT_GT(copies.at("bytes"), 0);
        const auto bytes = copies.at("bytes").get<double>();
        EXPECT_NEAR(request.at("ranks").at(rank / tp * tp).at("bytes").get<double>(), bytes, tolerance * bytes);
        EXPECT_GT(request.at("response_s"), copies.at("busy_s"));
      }
      EXPECT_GT(request.at("bound_s"), 0);
    }
    EXPECT_EQ(metrics.at("skew").is_null(), tp == 1);
    EXPECT_EQ(metrics.at("link").at("bytes_per_s_by_rank_and_round").size(), static_cast<std::size_t>(tp * pp));
  }
}

TEST_F(BenchSwap, ComparesWithOneRank) {
  const json alone = measure(1, 1);
  const json together = measure(2, 1, {"--baseline", (*folder_ / "1x1.json").string()});
  EXPECT_TRUE(alone.at("speed_up").is_null());
  EXPECT_GT(together.at("speed_up"), 0);
  EXPECT_DOUBLE_EQ(together.at("bytes_ratio"),
                   alone.at("shard_bytes").get<double>() / together.at("shard_bytes").get<double>());
}

// Most of a failed job's time is mpirun's waiting, so they run side by side.
TEST_F(BenchSwap, SaysWhenThereIsNothingToMeasure) {
  struct Refused {
    std::vector<std::string> more;
    int code;
    const char* part;
  };
  const std::string second = "b=" + (*folder_ / "tiny.h5").string();
  const std::vector<Refused> all = {
      {{}, 64, "two models"},
      {{"--model", second, "--device-memory", "64MiB"}, 78, "still resident"},
      {{"--model", second, "--baseline", (*folder_ / "none.json").string()}, 66, "none.json"}};
  std::vector<std::unique_ptr<MpiJob>> jobs;
  for (const Refused& refused : all) {
    const auto folder = *folder_ / fmt::format("refused{}", jobs.size());
    std::filesystem::create_directory(folder);
    jobs.push_back(std::make_unique<MpiJob>(1, command_of(1, 1, refused.more), folder));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const JobOutcome outcome = jobs[i]->wait(healthy_limit_s());
    EXPECT_EQ(outcome.exit_code, all[i].code) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr(all[i].part));
  }
}

}  // namespace
}  // namespace computron::test
