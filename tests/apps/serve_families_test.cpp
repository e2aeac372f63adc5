// Checkpoints that `computron convert` made of Hugging Face folders, served side by side from a pool that holds few of
// them: the tokens are those that transformers chose (tests/fixtures/make_families.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "computron/ops/cpu_probe.h"
#include "tests/apps/serve_job.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

constexpr double kClearMargin = 1e-3;  // a greedy choice by less may fall either way
const std::vector<std::string> kDecoders = {"opt",          "opt-350m",           "gpt2",      "llama2",    "llama3",
                                            "llama-linear", "llama-yarn",         "qwen2",     "qwen3",     "gemma2",
                                            "gemma3",       "gemma3-text-config", "olmo2",     "olmo3",     "granite",
                                            "phi3",         "phi3-long",          "mistral",   "mistral3",  "mixtral",
                                            "gpt-neox",     "gpt-neox-serial",    "qwen2-moe", "qwen3-moe", "olmoe",
                                            "gpt-oss"};

using Fixture = FamilyFixture;

ServedFile served(const std::string& family) { return {family, beside_test("families") / (family + ".h5")}; }

// Every prompt of every family, the families taking turns.
std::vector<std::string> greedy_lines(const std::vector<std::string>& families) {
  std::vector<std::string> lines;
  for (int i = 0; i < 3; ++i) {
    for (const std::string& family : families) {
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

void expect_tokens(const Results& results, const std::vector<std::string>& families) {
  for (const std::string& family : families) {
    const Fixture fixture(family);
    for (int i = 0; i < 3; ++i) {
      const auto expected = fixture.tokens(fmt::format("greedy.{}", i));
      const auto margins = fixture.read<float>(fmt::format("margins.{}", i));
      const auto tokens = results.tokens(fmt::format("{}.{}", family, i));
      ASSERT_EQ(tokens.size(), expected.size());
      for (std::size_t k = 0; k < tokens.size() && margins[k] >= kClearMargin; ++k) {
        ASSERT_EQ(tokens[k], expected[k]) << family << ", prompt " << i << ", token " << k;
      }
    }
  }
}

TEST_P(ServeFamilies, ChooseTheTokensOfTransformers) {
  ServeJob job{
      .tp = GetParam().first, .pp = GetParam().second, .lines = greedy_lines(kDecoders), .device_memory = "1280KiB"};
  for (const std::string& family : kDecoders) job.models.push_back(served(family));
  const Served served = serve_ok(job, folder_);
  expect_tokens(served.results, kDecoders);
  EXPECT_GE(served.metrics.at("swaps").at("count").get<int>(), static_cast<int>(kDecoders.size()));
}

// Codes that are multiplied in float32, or as integers by rows of 15 bits: in both routers choose as in transformers.
TEST_P(ServeFamilies, ExpertsOfCodesChooseTheTokensOfTransformers) {
  if (!on_cpu()) GTEST_SKIP() << "GPUs multiply them in bfloat16";
  if (GetParam().first > 2) GTEST_SKIP() << "the codes would be cut within their groups";
  const std::filesystem::path script = folder_ / "program";
  write_lines(script,
              {"#!/bin/sh", fmt::format("export COMPUTRON_MAX_ISA={}", instruction_set() == "neon" ? "neon" : "avx2"),
               fmt::format("exec '{}' \"$@\"", served_program())});
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const std::vector<std::string> families = {"gpt-oss-mxfp4"};
  const ServeJob job{.tp = GetParam().first,
                     .pp = GetParam().second,
                     .models = {served("gpt-oss-mxfp4")},
                     .lines = greedy_lines(families),
                     .program = script};
  expect_tokens(serve_ok(job, folder_).results, families);
}

std::map<std::string, nlohmann::json> choices(const Served& served) {
  std::map<std::string, nlohmann::json> choices;
  for (const std::string& id : served.results.custom_ids()) {
    choices[id] = served.results.line(id).at("response").at("body").at("choices");
  }
  return choices;
}

std::vector<int> prompt_of(const std::string& family, int i) {
  const auto tokens = Fixture(family).tokens(fmt::format("prompt.{}", i));
  return {tokens.begin(), tokens.end()};
}

// Swapped in and out of so much memory a rank, the bits of models that stay.
void expect_swapped_as_resident(std::pair<int, int> mesh, const std::vector<std::string>& families,
                                const std::string& device_memory, const TemporaryFolder& folder) {
  ServeJob job{.tp = mesh.first, .pp = mesh.second, .device_memory = "64MiB"};
  for (const std::string& family : families) job.models.push_back(served(family));
  for (int i = 0; i < 3; ++i) {
    for (const std::string& family : families) {
      job.lines.push_back(completion_line(fmt::format("{}.{}", family, i), family, prompt_of(family, i), 16,
                                          {{"ignore_eos", true}, {"logprobs", 3}}));
    }
  }
  const Served resident = serve_ok(job, folder);
  job.page_size = "16KiB";
  job.device_memory = device_memory;
  job.more = {"--max-seqs", "1", "--policy", "fifo"};
  const Served swapped = serve_ok(job, folder);
  EXPECT_EQ(choices(swapped), choices(resident));
  EXPECT_GT(swapped.metrics.at("swaps").at("count").get<int>(), 3);
}

// With windows in some layers and rotary bases of their own.
TEST_P(ServeFamilies, SwappedLayersWithWindowsAreResidentOnes) {
  expect_swapped_as_resident(GetParam(), {"gemma2", "gemma3", "olmo3"},
                             GetParam() == std::pair{1, 1} ? "320KiB" : "176KiB", folder_);
}

// Experts in some layers, one beside them, biases of all experts.
TEST_P(ServeFamilies, SwappedLayersWithExpertsAreResidentOnes) {
  expect_swapped_as_resident(GetParam(), {"qwen2-moe", "qwen3-moe", "gpt-oss"},
                             GetParam() == std::pair{1, 1} ? "512KiB" : "320KiB", folder_);
}

// Requests that begin alike, of which some may pass the 64 original positions of longrope: what those share they have
// rotated alike.
TEST_P(ServeFamilies, PrefixesAreSharedAmongEqualRotaryFactorsOnly) {
  if (GetParam().first > 2) GTEST_SKIP() << "rank 0 decides alike on every mesh";
  ServeJob job{.tp = GetParam().first, .pp = GetParam().second, .models = {served("phi3-long")}};
  std::vector<int> prompt = prompt_of("phi3-long", 2);
  prompt.resize(40);
  for (const int max_tokens : {24, 25, 8, 60}) {  // 40 + 24 are 64 tokens
    job.lines.push_back(completion_line(fmt::format("{}", max_tokens), "phi3-long", prompt, max_tokens,
                                        {{"ignore_eos", true}, {"logprobs", 1}}));
  }
  job.more = {"--max-seqs", "1"};
  const Served apart = serve_ok(job, folder_);
  job.more.emplace_back("--share-prefixes");
  const Served shared = serve_ok(job, folder_);
  EXPECT_EQ(choices(shared), choices(apart));
  EXPECT_EQ(shared.metrics.at("cache").at("shared_tokens"), 2 * 32)
      << "the second of either kind begins behind the first";
  const auto first_logprob = [of = choices(apart)](const char* id) {
    return of.at(id)[0].at("logprobs").at("token_logprobs")[0];
  };
  EXPECT_EQ(first_logprob("24"), first_logprob("8"));
  EXPECT_NE(first_logprob("24"), first_logprob("25"));
}

INSTANTIATE_TEST_SUITE_P(Meshes, ServeFamilies,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 1}, std::pair{1, 2},
                                           std::pair{2, 2}),
                         [](const auto& mesh) { return fmt::format("tp{}pp{}", mesh.param.first, mesh.param.second); });

}  // namespace
}  // namespace computron::test
