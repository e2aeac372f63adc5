// computron bench step: what it counts, not how fast it is.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(BenchStep, CountsTheStepsThatHaveAllSequences) {
  const TemporaryFolder folder;
  for (const auto& [tp, pp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}}) {
    SCOPED_TRACE(fmt::format("{}x{}", tp, pp));
    const std::filesystem::path result = folder / "step.json";
    const JobOutcome outcome =
        run_job(tp * pp,
                {served_program(), "bench", "step", "--quiet", fmt::format("--tp={}", tp), fmt::format("--pp={}", pp),
                 "--sequences=1,6", "--steps=10", "--json", result.string()},
                folder / "", healthy_limit_s());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("A step of an empty model"));
    std::ifstream file(result);
    const json metrics = json::parse(file);
    ASSERT_EQ(metrics.at("rows").size(), 2u);
    for (const json& row : metrics.at("rows")) {
      // The first has nothing before it; with two stages the six are two shares of three.
      const int shares = row.at("sequences") == 6 ? pp : 1;
      EXPECT_EQ(row.at("steps"), 10 * shares - 1);
      EXPECT_GT(row.at("wall_us"), 0);
      EXPECT_GT(row.at("compute_us"), 0);
      EXPECT_GT(row.at("own_us"), 0);
    }
  }
}

}  // namespace
}  // namespace computron::test
