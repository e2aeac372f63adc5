// Variants of one model: what they have in common lies in host memory once, comes once, and stays as long as one of
// them wants it. What a roster of them takes is computed on paper here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "computron/device/device.h"
#include "computron/runtime/kv_geometry.h"
#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;

// About 45 pages on one rank.
constexpr std::size_t kPageBytes = 32 << 10;
const TinyModel kModel{
    .layers = 8, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 192, .max_positions = 96, .seed = 71};

std::size_t swapped_bytes(const Served& served) { return served.metrics["swaps"]["bytes"].get<std::size_t>(); }

// A file whose layers from `first` on are of a seed of their own.
void write_upper_variant(const std::string& path, int first, std::uint64_t seed) {
  const auto upper = [first](const std::string& name) { return name.starts_with("layers.") && name[7] - '0' >= first; };
  write_variant_checkpoint(path, opt_config(kModel), kModel.dtype, kModel.seed, upper, seed);
}

// Weights of a layer: float32, rows in whole blocks of 64, with its vectors. Pages end where a block does not fit.
constexpr std::size_t kHidden = 64, kFfn = 96, kFfnRows = 128, kVectors = 9 * kHidden + kFfn;
constexpr std::size_t kLayerLeast = sizeof(float) * (4 * kHidden * kHidden + 2 * kHidden * kFfn + kVectors);
constexpr std::size_t kLayerMost = sizeof(float) * (4 * kHidden * kHidden + kHidden * (kFfnRows + kFfn) + kVectors);

// Frames that the cache of a sequence takes: a block of tokens of each layer.
int cache_frames() {
  const auto device = make_cpu_device({.threads = 1});
  const auto ops = make_cpu_ops(*device);
  const ShardPlan plan = ShardPlan::make(opt_config(kModel), {1, 1}, /*stage=*/0);
  return KvGeometry::make(ShardLayout::make(plan, ops->weight_format(), ops->weight_type(kModel.dtype), kPageBytes))
      .frames_for(1);
}

// --- Answers ----------------------------------------------------------------------------------------------------

struct Mesh {
  int tp, pp;
};

class Variants : public ::testing::TestWithParam<Mesh> {};

// The second half of the layers is another's, or the words are; models take turns in a pool for one and a half.
TEST_P(Variants, AnswerTheSameAndMoveOnlyWhatTheyDoNotHaveInCommon) {
  const TemporaryFolder folder;
  const ModelConfig config = opt_config(kModel);
  write_tiny_checkpoint(folder / "base.h5", kModel);
  const auto upper = [](const std::string& name) { return name.starts_with("layers.") && name[7] >= '4'; };
  write_variant_checkpoint(folder / "tuned.h5", config, kModel.dtype, kModel.seed, upper, /*other_seed=*/5);
  const auto words = [](const std::string& name) { return name == "embedding.tokens.weight"; };
  write_variant_checkpoint(folder / "words.h5", config, kModel.dtype, kModel.seed, words, /*other_seed=*/6);
  ServeJob job{.tp = GetParam().tp, .pp = GetParam().pp, .page_size = "32KiB"};
  job.device_memory = fmt::format("{}KiB", 2400 / (GetParam().tp * GetParam().pp) + 64);
  job.models = {{"base", folder / "base.h5"}, {"tuned", folder / "tuned.h5"}, {"words", folder / "words.h5"}};
  for (int round = 0; round < 3; ++round) {
    for (const ServedFile& model : job.models) {
      job.lines.push_back(
          completion_line(fmt::format("{}{}", model.id, round), model.id, random_prompt(kModel, 9, 40 + round), 6));
    }
  }
  const auto served_with = [&](const std::vector<std::string>& more, const char* policy = "fifo") {
    ServeJob with = job;
    with.more = {"--policy", policy, "--max-seqs", "1", "--verify-swap", "every"};
    with.more.insert(with.more.end(), more.begin(), more.end());
    return serve_ok(with, folder);
  };
  const Served apart = served_with({"--model-pages", "private"});
  const auto expect_same_answers = [&](const Served& together) {
    for (const ServedFile& model : job.models) {
      for (int round = 0; round < 3; ++round) {
        const std::string id = fmt::format("{}{}", model.id, round);
        EXPECT_EQ(together.results.choice(id), apart.results.choice(id)) << id;
      }
    }
  };
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--coded", "on"}, {"--host-pages", "private"}}) {
    const Served together = served_with(more);
    expect_same_answers(together);
    EXPECT_LT(swapped_bytes(together), swapped_bytes(apart) * 3 / 4);
  }
  expect_same_answers(served_with({}, "balanced"));
  expect_same_answers(served_with({}, "throughput"));
}

INSTANTIATE_TEST_SUITE_P(Meshes, Variants, ::testing::Values(Mesh{1, 1}, Mesh{2, 1}, Mesh{1, 2}, Mesh{2, 2}),
                         [](const auto& test) { return fmt::format("tp{}pp{}", test.param.tp, test.param.pp); });

// --- Bytes ------------------------------------------------------------------------------------------------------

// A roster of variants whose requests are served one after the other.
class Roster : public ::testing::Test {
 protected:
  void add(const std::string& id, int first_layer, std::uint64_t seed) {
    write_upper_variant(folder_ / (id + ".h5"), first_layer, seed);
    job_.models.push_back({id, folder_ / (id + ".h5")});
  }
  // What a job moves with a request for each of `models`, in this order.
  json swaps_of(const std::vector<std::string>& models, const std::string& memory,
                const std::vector<std::string>& more = {}) const {
    ServeJob with = job_;
    with.device_memory = memory;
    with.more.insert(with.more.end(), more.begin(), more.end());
    for (const std::string& id : models) {
      with.lines.push_back(completion_line(fmt::format("r{}", with.lines.size()), id, random_prompt(kModel, 9, 40), 3));
    }
    return serve_ok(with, folder_).metrics.at("swaps");
  }
  static std::size_t bytes_of(const json& swaps) { return swaps.at("bytes").get<std::size_t>(); }
  // A pool of so many frames.
  static std::string pool_of(std::size_t frames) { return fmt::format("{}KiB", frames * kPageBytes >> 10); }

  TemporaryFolder folder_;
  ServeJob job_{.page_size = "32KiB", .more = {"--policy", "fifo", "--coded", "off", "--max-seqs", "1"}};
};

std::vector<std::string> twice(std::vector<std::string> models) {
  const std::vector<std::string> once = models;
  models.insert(models.end(), once.begin(), once.end());
  return models;
}

// Eight models whose lower layers are one's: those and eight upper halves are all that comes into the pool, and that
// lies in host memory. Where the halves meet is one page.
TEST_F(Roster, OfEightTakesOneLowerHalfAndEightUpperOnes) {
  std::vector<std::string> models;
  for (std::uint64_t v = 0; v < 8; ++v) add(models.emplace_back(fmt::format("v{}", v)), /*first_layer=*/4, 80 + v);
  const json one = swaps_of({"v0"}, "64MiB"), all = swaps_of(models, "64MiB");
  EXPECT_GE(bytes_of(all), bytes_of(one) + 7 * 4 * kLayerLeast);
  EXPECT_LE(bytes_of(all), bytes_of(one) + 7 * (4 * kLayerMost + 2 * kPageBytes));

  // The second round finds all of it, in a pool of just these pages and two caches: where one model follows another
  // both have theirs, a block of tokens of eight layers in two frames. With a frame less pages go and come back.
  const auto pages = all.at("pages").get<std::size_t>(), cache = static_cast<std::size_t>(cache_frames());
  const json again = swaps_of(twice(models), pool_of(pages + 2 * cache));
  EXPECT_EQ(bytes_of(again), bytes_of(all));
  EXPECT_GT(bytes_of(swaps_of(twice(models), pool_of(pages + 2 * cache - 1))), bytes_of(all));

  std::vector<std::string> dry{served_program(), "serve", "--dry-run", "--page-size", "32KiB", "--coded", "off"};
  for (const ServedFile& model : job_.models) dry.insert(dry.end(), {"--model", model.id + "=" + model.path.string()});
  const std::string requests = folder_ / "none.jsonl";
  write_lines(requests, {});
  dry.insert(dry.end(), {"--requests", requests, "--output", folder_ / "none.out", "--device", "cpu"});
  const JobOutcome told = run_job(/*ranks=*/1, dry, folder_ / "", healthy_limit_s());
  std::smatch held;
  const std::regex line(R"(equal pages are held once: ([\d.]+) MiB in all, ([\d.]+) MiB without that)");
  ASSERT_TRUE(std::regex_search(told.errors, held, line)) << told.errors;
  // Of each page whole ones of the system; two digits are shown.
  const auto expect_held = [](const std::string& mib, double bytes, double page_count) {
    const double shown = std::stod(mib) * 0x1p20, rounding = 0.005 * 0x1p20;
    EXPECT_GE(shown, bytes - rounding);
    EXPECT_LE(shown, bytes + page_count * 4096 + rounding);
  };
  expect_held(held[1], static_cast<double>(bytes_of(all)), static_cast<double>(pages));
  expect_held(held[2], 8 * static_cast<double>(bytes_of(one)), 8 * one.at("pages").get<double>());
}

// Two models of eight layers, some of them in common, take turns in a pool for one of them: a swap moves the layers
// that differ. perf/siblings.sh has what part of the time it takes.
TEST_F(Roster, OfTwoSwapsByTheirDifference) {
  add("a", /*first_layer=*/8, 0);
  add("six", /*first_layer=*/6, 5);
  add("two", /*first_layer=*/2, 6);
  const auto pages = swaps_of({"a"}, "64MiB").at("pages").get<std::size_t>();
  const std::string pool = pool_of(pages + 2 * static_cast<std::size_t>(cache_frames()));
  const auto bytes_of_a_swap = [&](const std::string& other, const char* model_pages) {
    const std::vector<std::string> more = {"--model-pages", model_pages};
    const json first = swaps_of({"a"}, pool, more), all = swaps_of({"a", other, "a", other, "a"}, pool, more);
    return static_cast<double>(bytes_of(all) - bytes_of(first)) / 4;
  };
  EXPECT_GE(bytes_of_a_swap("six", "private"), 8.0 * kLayerLeast);
  for (const auto& [other, differ] : {std::pair("six", 2.0), std::pair("two", 6.0)}) {
    const double bytes = bytes_of_a_swap(other, "shared");
    EXPECT_GE(bytes, differ * kLayerLeast - kPageBytes) << other;
    EXPECT_LE(bytes, differ * kLayerMost + kPageBytes) << other;
  }
}

}  // namespace
}  // namespace computron::test
