// Checkpoints that `computron convert` made of Hugging Face folders, served side by side from a pool that holds few of
// them: the tokens are those that transformers chose (tests/fixtures/make_families.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/apps/serve_job.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"

namespace computron::test {
namespace {

constexpr double kClearMargin = 1e-3;  // a greedy choice by less may fall either way
const std::vector<std::string> kDecoders = {"opt",          "opt-350m",           "gpt2",    "llama2",   "llama3",
                                            "llama-linear", "llama-yarn",         "qwen2",   "qwen3",    "gemma2",
                                            "gemma3",       "gemma3-text-config", "olmo2",   "olmo3",    "granite",
                                            "phi3",         "phi3-long",          "mistral", "mistral3", "mixtral",
                                            "gpt-neox",     "gpt-neox-serial"};

using Fixture = FamilyFixture;

// Every prompt of every family, the families taking turns.
std::vector<std::string> greedy_lines() {
  std::vector<std::string> lines;
  for (int i = 0; i < 3; ++i) {
    for (const std::string& family : kDecoders) {
      const auto prompt = Fixture(family).tokens(fmt::format("prompt.{}", i));
      lines.push_back(completion_line(fmt::format("{}.{}", family, i), family, prompt, 16, {{"ignore_eos", true}}));
    }
  }
  return lines;
}

class ServeFamilies : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(ServeFamilies, ChooseTheTokensOfTransformers) {
  ServeJob job{.tp = GetParam().first, .pp = GetParam().second, .lines = greedy_lines(), .device_memory = "1280KiB"};
  for (const std::string& family : kDecoders) {
    job.models.push_back({family, beside_test("families") / (family + ".h5")});
  }
  const Served served = serve_ok(job, folder_);
  for (const std::string& family : kDecoders) {
    const Fixture fixture(family);
    for (int i = 0; i < 3; ++i) {
      const auto expected = fixture.tokens(fmt::format("greedy.{}", i));
      const auto margins = fixture.read<float>(fmt::format("margins.{}", i));
      const auto tokens = served.results.tokens(fmt::format("{}.{}", family, i));
      ASSERT_EQ(tokens.size(), expected.size());
      for (std::size_t k = 0; k < tokens.size() && margins[k] >= kClearMargin; ++k) {
        ASSERT_EQ(tokens[k], expected[k]) << family << ", prompt " << i << ", token " << k;
      }
    }
  }
  EXPECT_GE(served.metrics.at("swaps").at("count").get<int>(), static_cast<int>(kDecoders.size()));
}

INSTANTIATE_TEST_SUITE_P(Meshes, ServeFamilies,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 1}, std::pair{1, 2},
                                           std::pair{2, 2}),
                         [](const auto& mesh) { return fmt::format("tp{}pp{}", mesh.param.first, mesh.param.second); });

}  // namespace
}  // namespace computron::test
