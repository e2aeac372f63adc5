// Adapters beside their bases, as `serve` runs them: the tokens are those that peft chose
// (tests/fixtures/make_adapters.py), the same alone, among others and merged, and a base's pages are there once,
// whoever asks for them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "tests/apps/serve_job.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kClearMargin = 1e-3;  // a greedy choice by less may fall either way

// Those of decoders, but for one that changes the output head.
const std::map<std::string, std::string> kBases = {
    {"llama3", "llama3"}, {"opt-rslora", "opt"}, {"gpt2", "gpt2"}, {"gpt-neox", "gpt-neox"}, {"qwen2-bf16", "qwen2"}};

std::string file(const std::string& name) { return beside_test("adapters") / (name + ".h5"); }
std::string base_of(const std::string& adapter) { return file("base." + kBases.at(adapter)); }
ServedFile beside(const std::string& adapter) { return {adapter, base_of(adapter) + "+" + file(adapter + ".adapter")}; }

FamilyFixture fixture(const std::string& adapter) {
  return {std::filesystem::path(COMPUTRON_ADAPTER_FIXTURES) / adapter / "expected.safetensors", ""};
}

std::string line(const std::string& id, const std::string& model, const std::string& adapter, int prompt) {
  return completion_line(id, model, fixture(adapter).tokens(fmt::format("prompt.{}", prompt)), 16,
                         {{"ignore_eos", true}, {"logprobs", 2}});
}

class ServeAdapters : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  void SetUp() override {
    if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  }
  TemporaryFolder folder_;
};

// All of them in one job, with their bases, from a pool that holds few of them.
TEST_P(ServeAdapters, ChooseTheTokensOfPeft) {
  ServeJob job{.tp = GetParam().first, .pp = GetParam().second, .device_memory = "1MiB"};
  for (const auto& [adapter, base] : kBases) {
    job.models.push_back(beside(adapter));
    job.models.push_back({"base." + adapter, base_of(adapter)});
    for (int i = 0; i < 3; ++i) {
      job.lines.push_back(line(fmt::format("{}.{}", adapter, i), adapter, adapter, i));
      job.lines.push_back(line(fmt::format("base.{}.{}", adapter, i), "base." + adapter, adapter, i));
    }
  }
  const Served served = serve_ok(job, folder_);
  for (const auto& [adapter, base] : kBases) {
    for (int i = 0; i < 3; ++i) {
      const auto expected = fixture(adapter).tokens(fmt::format("greedy.{}", i));
      const auto margins = fixture(adapter).read<float>(fmt::format("margins.{}", i));
      const auto tokens = served.results.tokens(fmt::format("{}.{}", adapter, i));
      ASSERT_EQ(tokens.size(), expected.size());
      for (std::size_t k = 0; k < tokens.size() && margins[k] >= kClearMargin; ++k) {
        ASSERT_EQ(tokens[k], expected[k]) << adapter << ", prompt " << i << ", token " << k;
      }
      EXPECT_NE(served.results.tokens(fmt::format("base.{}.{}", adapter, i)), tokens) << "the adapter changes nothing";
    }
  }
}

// With --reproducible the slices of a sum are the same at any tp.
TEST_P(ServeAdapters, HaveTheSameBitsAloneAndAmongOthersAndWhereTheyStream) {
  ServeJob job{.tp = GetParam().first, .pp = GetParam().second, .device_memory = "8MiB", .page_size = "32KiB"};
  job.models = {{"base", base_of("llama3")}, beside("llama3")};
  std::map<std::string, std::string> alone;
  for (int i = 0; i < 3; ++i) {
    job.lines = {line("r", "llama3", "llama3", i)};
    alone[fmt::format("llama3.{}", i)] = serve_ok(job, folder_).results.choice("r").dump();
  }
  job.lines.clear();
  for (int i = 0; i < 3; ++i) {
    for (const char* model : {"base", "llama3"})
      job.lines.push_back(line(fmt::format("{}.{}", model, i), model, "llama3", i));
  }
  const Results together = serve_ok(job, folder_).results;
  job.device_memory = "352KiB";  // nine frames and slots, fewer than the model has pages where one rank has it all
  const Results streamed = serve_ok(job, folder_).results;
  for (const auto& [id, choice] : alone) {
    EXPECT_EQ(together.choice(id).dump(), choice) << id;
    EXPECT_EQ(streamed.choice(id).dump(), choice) << id << ", streamed";
  }
}

// --- Merged -----------------------------------------------------------------------------------------------------

// What a model says of a prompt, and of the tokens that it chooses behind it.
struct Said {
  std::vector<int> tokens = {};
  std::vector<double> logprobs = {};  // [token] but the first
  std::vector<double> margins = {};   // [token] but the first: of the best one before the next
};

Said said(const nlohmann::json& choice) {
  const nlohmann::json& logprobs = choice.at("logprobs");
  Said said{.tokens = logprobs.at("token_ids").get<std::vector<int>>()};
  for (std::size_t i = 1; i < said.tokens.size(); ++i) {
    said.logprobs.push_back(logprobs.at("token_logprobs").at(i).get<double>());
    std::vector<double> best;
    for (const auto& [token, logprob] : logprobs.at("top_logprobs").at(i).items()) best.push_back(logprob);
    std::ranges::sort(best, std::greater<>());
    said.margins.push_back(best.at(0) - best.at(1));
  }
  return said;
}

// Of two models' log-probabilities, as far as they choose the same tokens.
struct Distance {
  double most = 0, sum = 0;
  int count = 0;
  double parted = 0;  // the largest margin with which one of them chose another token than the other one

  void add(const Said& a, const Said& b) {
    for (std::size_t i = 1; i < a.tokens.size(); ++i) {
      if (a.tokens[i] != b.tokens[i]) {
        parted = std::max({parted, a.margins[i - 1], b.margins[i - 1]});
        return;
      }
      const double distance = std::abs(a.logprobs[i - 1] - b.logprobs[i - 1]);
      most = std::max(most, distance);
      sum += distance;
      ++count;
    }
  }
  double mean() const { return sum / count; }
};

// An adapter and its base, beside each other and as one file; in float32, and in bfloat16, of which the same are as
// *.bf16.
class ServeMergedAdapters : public ServeAdapters {
 protected:
  void run() {
    ServeJob job{.tp = GetParam().first, .pp = GetParam().second, .device_memory = "4MiB"};
    for (const char* type : kTypes) {
      for (const auto& [adapter, base] : kBases) {
        const std::string plain = file("base." + base + type);
        add("base", adapter, type, plain, job);
        add("beside", adapter, type, plain + "+" + file(adapter + ".adapter"), job);
        add("merged", adapter, type, file(adapter + type), job);
      }
    }
    results_ = serve_ok(job, folder_).results;
  }

  Distance distance(const std::string& adapter, const std::string& one, const std::string& other) const {
    Distance distance;
    for (int i = 0; i < kPrompts; ++i) {
      const auto of = [&](const std::string& model) { return said(results_.choice(id_of(model, adapter, i))); };
      distance.add(of(one), of(other));
    }
    return distance;
  }

 private:
  static constexpr const char* kTypes[] = {"", ".bf16"};
  static constexpr int kPrompts = 3;

  static std::string id_of(const std::string& model, const std::string& adapter, int prompt) {
    return fmt::format("{} {} {}", model, adapter, prompt);
  }
  static void add(const std::string& how, const std::string& adapter, const std::string& type, const std::string& path,
                  ServeJob& job) {
    const std::string model = how + type;
    job.models.push_back({model + "." + adapter, path});
    for (int i = 0; i < kPrompts; ++i) {
      job.lines.push_back(completion_line(id_of(model, adapter, i), job.models.back().id,
                                          fixture(adapter).tokens(fmt::format("prompt.{}", i)), 16,
                                          {{"ignore_eos", true}, {"logprobs", 2}, {"echo", true}}));
    }
  }

  Results results_;
};

// In float32 the two differ by 1.2e-5 at most. A bfloat16 of a merged weight has one rounding, beside each other base,
// A and B have one each: measured, these two are half as far from each other, in the mean, as either is from float32,
// and a seventieth of what the adapter changes.
TEST_P(ServeMergedAdapters, SayWhatTheySayBesideTheirBases) {
  constexpr double kRounding = 1e-4;
  run();
  for (const auto& [adapter, base] : kBases) {
    SCOPED_TRACE(adapter);
    const Distance exact = distance(adapter, "beside", "merged"), moved = distance(adapter, "base", "merged");
    EXPECT_LE(exact.most, kRounding);
    EXPECT_LE(exact.parted, 2 * kRounding);
    EXPECT_GT(moved.mean(), 0.1) << "the adapter changes nothing";

    const Distance narrow = distance(adapter, "beside.bf16", "merged.bf16");
    EXPECT_LE(narrow.mean(), distance(adapter, "merged", "merged.bf16").mean());
    EXPECT_LE(narrow.mean(), moved.mean() / 30);
    EXPECT_LE(narrow.parted, 4 * narrow.most);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, ServeMergedAdapters,
                         ::testing::Values(std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)),
                         [](const auto& mesh) { return fmt::format("tp{}pp{}", mesh.param.first, mesh.param.second); });

INSTANTIATE_TEST_SUITE_P(Meshes, ServeAdapters,
                         ::testing::Values(std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)),
                         [](const auto& mesh) { return fmt::format("tp{}pp{}", mesh.param.first, mesh.param.second); });

class ServeAnAdapter : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

// A second model of the same base brings its own pages and no others.
TEST_F(ServeAnAdapter, BringsItsOwnPagesOnly) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  const auto bytes = [&](const std::vector<std::string>& models) {
    ServeJob job{.page_size = "32KiB", .more = {"--coded", "off"}};
    job.models = {{"base", base_of("llama3")}, beside("llama3")};
    for (const std::string& model : models) job.lines.push_back(line("of." + model, model, "llama3", 1));
    return serve_ok(job, folder_).metrics.at("swaps").at("bytes").get<double>();
  };
  const double base = bytes({"base"}), adapter = bytes({"llama3"}), both = bytes({"base", "llama3"});
  EXPECT_EQ(both, adapter) << "the base's pages are among the other's";
  EXPECT_LT(adapter - base, 48 << 10) << "43840 bytes of adapter";
  EXPECT_GT(adapter - base, 36 << 10);
}

// What the report says of the pool, slots and frames together; and a pool that has room for slots only.
TEST_F(ServeAnAdapter, LiesInAPartOfThePool) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  ServeJob job{.device_memory = "1MiB", .page_size = "32KiB"};
  job.models = {{"base", base_of("llama3")}, beside("llama3")};
  job.lines = {line("r", "llama3", "llama3", 1)};
  const auto pool = serve_ok(job, folder_).metrics.at("configuration").at("device-memory").get<std::string>();
  int frames = 0, slots = 0, slot_kib = 0;
  ASSERT_EQ(std::sscanf(pool.c_str(), "1.00 MiB (%d frames, %d slots of %d", &frames, &slots, &slot_kib), 3) << pool;
  EXPECT_EQ(frames + ceil_div(slots * slot_kib, 32), 32) << pool;
  EXPECT_GT(slots, 2) << pool;
  job.device_memory = "64KiB";
  const Served refused = serve(job, folder_);
  EXPECT_EQ(refused.job.exit_code, 78);
  EXPECT_THAT(refused.job.errors, HasSubstr("--device-memory 64.00 KiB holds no page of 32.00 KiB beside slots"));
}

TEST_F(ServeAnAdapter, OfTheOutputHeadIsRefusedByName) {
  if (!on_cpu()) GTEST_SKIP() << "adapters are computed on CPUs";
  const ServeJob job{.models = {{"a", file("base.phi3") + "+" + file("phi3.adapter")}}, .lines = {}};
  const Served served = serve(job, folder_);
  EXPECT_EQ(served.job.exit_code, 78);
  EXPECT_THAT(served.job.errors, AllOf(HasSubstr("model a"), HasSubstr("head.weight"), HasSubstr("--merge")));
}

// Which says what to do instead.
TEST_F(ServeAnAdapter, IsRefusedByOtherDevices) {
  if (on_cpu()) GTEST_SKIP() << "CPUs compute adapters";
  const ServeJob job{.models = {beside("llama3")}, .lines = {}};
  const Served served = serve(job, folder_);
  EXPECT_EQ(served.job.exit_code, 78);
  EXPECT_THAT(served.job.errors, AllOf(HasSubstr("model llama3"), HasSubstr("CPUs only"), HasSubstr("--merge")));
}

}  // namespace
}  // namespace computron::test
