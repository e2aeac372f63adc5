// computron bench load on a small model: what it measures, not how fast it is.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(BenchLoad, MeasuresEveryRoundBesideAPlainRead) {
  const TemporaryFolder folder;
  const std::string model = (folder / "tiny.h5").string(), metrics = (folder / "metrics.json").string();
  write_tiny_checkpoint(model, {.dtype = DType::kF16});
  const std::vector<std::string> command = {served_program(), "bench",  "load",      model, "--quiet",
                                            "--threads",      "2",      "--repeats", "3",   "--page-size",
                                            "64KiB",          "--json", metrics};
  const JobOutcome outcome = run_job(/*ranks=*/2, command, folder / "", healthy_limit_s());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("load / plain read"));
  std::ifstream file(metrics);
  const json found = json::parse(file);
  EXPECT_EQ(found.at("file_bytes"), std::filesystem::file_size(model));
  EXPECT_EQ(found.at("tp"), 2);
  EXPECT_EQ(found.at("threads"), 2);
  ASSERT_EQ(found.at("rounds").size(), 3u);
  for (const json& round : found.at("rounds")) {
    for (const char* key : {"plain_s", "parts_s", "fresh_s", "load_s", "coded_s"}) EXPECT_GT(round.at(key), 0) << key;
    double threads_s = 0;
    for (const json& seconds : round.at("thread_s")) threads_s += seconds.get<double>();
    EXPECT_GT(round.at("thread_s").at("widen"), 0);                     // float16 lies in pages as float32
    EXPECT_LE(threads_s, 4 * round.at("load_s").get<double>() + 1e-6);  // of two ranks' two threads
  }
}

TEST(BenchLoad, SaysWhatFileIsMissing) {
  const TemporaryFolder folder;
  const std::vector<std::string> command = {served_program(), "bench", "load", (folder / "none.h5").string()};
  const JobOutcome outcome = run_job(/*ranks=*/1, command, folder / "", healthy_limit_s());
  EXPECT_EQ(outcome.exit_code, 66) << outcome.errors;
  EXPECT_THAT(outcome.errors, HasSubstr("none.h5"));
}

}  // namespace
}  // namespace computron::test
