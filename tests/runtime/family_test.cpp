// Every family against transformers: the checkpoints that `computron convert` made of tests/fixtures/families, computed
// on every mesh of as many ranks as there are, held against the logits, vectors and scores that transformers computed
// in float32 (tests/fixtures/make_families.py).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <tuple>

#include "tests/runtime/family_measures.h"
#include "tests/runtime/family_model.h"
#include "tests/runtime/family_results.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron::test {
namespace {

std::filesystem::path fixtures() { return COMPUTRON_FAMILY_FIXTURES; }
std::string checkpoint(const std::string& name) { return beside_test("families") / name; }

// The folders that Computron does not read yet: convert_families.sh leaves them out, too.
std::set<std::string> unsupported_families() {
  std::ifstream file(fixtures().parent_path() / "unsupported.txt");
  return {std::istream_iterator<std::string>(file), {}};
}

std::vector<std::string> family_names() {
  const std::set<std::string> unsupported = unsupported_families();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
    const std::string name = entry.path().filename();
    if (!unsupported.contains(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

using Expected = FamilyFixture;

ModelConfig config_of(const std::string& family) {
  return ModelConfig::from_json(read_checkpoint_index(checkpoint(family + ".h5")).config_json);
}

// Codes of the experts' 32 inner units have one scale for 32, or for 16 where two ranks have so many each.
bool can_be_cut(const std::string& family, MeshShape shape) { return family != "gpt-oss-mxfp4" || shape.tp <= 2; }

// All ranks go through all families and meshes in the same order, whatever fails.
TEST(Families, ComputeWhatTransformersComputes) {
  const Communicator world = Communicator::world();
  ASSERT_GE(family_names().size(), 12u);
  for (const MeshShape shape : meshes(world.size())) {
    for (const std::string& family : family_names()) {
      SCOPED_TRACE(fmt::format("{} on {}x{}", family, shape.tp, shape.pp));
      if (!can_be_cut(family, shape)) continue;
      Model model(shape, checkpoint(family + ".h5"), world);
      if (model.multiplied_as() == DType::kBF16) continue;  // Bf16StaysClose measures it; family_test.avx2 has float32
      const std::vector<Result> results = compute(model, Expected(family));
      EXPECT_GE(results.size(), 2u);
      for (const Result& result : results) {
        if (!model.reports()) continue;
        EXPECT_LE(distance(result.actual, result.expected), model.tolerance()) << result.name;
      }
    }
  }
}

// What the cosine of a row in bfloat16 is at least. gemma3-text-config has one row of 0.998999, whose logits are small
// (its divergence is 6.5e-5).
double least_cosine(const std::string& family) { return family == "gemma3-text-config" ? 0.998 : 0.999; }

// Weights and activations in bfloat16, by the measures of what that precision can give: the direction of rows, the
// divergence of the distributions, the best token. Where a router was undecided a row may go through another expert and
// is no measure: few are so.
TEST(Families, Bf16StaysClose) {
  const Communicator world = Communicator::world();
  int rows = 0, same_top = 0;
  for (const std::string& family : family_names()) {
    SCOPED_TRACE(family);
    const MeshShape widest{.tp = world.size(), .pp = 1};
    const bool fits = config_of(family).heads >= world.size() && can_be_cut(family, widest);
    const MeshShape shape = fits ? widest : meshes(world.size()).back();
    if (!can_be_cut(family, shape)) continue;
    Model model(shape, checkpoint(family + ".bf16.h5"), world);
    const std::vector<Result> results = compute(model, Expected(family));
    if (!model.reports()) continue;
    const bool has_experts = model.config().experts > 0;
    double divergences = 0, cosines = 0;
    int own_rows = 0, other_rows = 0;
    for (const Result& result : results) {
      for (std::size_t at = 0; at < result.expected.size(); at += result.width) {
        const auto actual = std::span(result.actual).subspan(at, result.width);
        const auto expected = std::span(result.expected).subspan(at, result.width);
        if (has_experts && cosine(actual, expected) <= least_cosine(family)) {
          ++other_rows;
          EXPECT_GT(cosine(actual, expected), 0.9) << result.name;
          continue;
        }
        ++own_rows;
        EXPECT_GT(cosine(actual, expected), least_cosine(family)) << result.name;
        cosines += cosine(actual, expected);
        divergences += divergence(actual, expected);
        same_top += best(actual) == best(expected);
      }
    }
    EXPECT_LT(divergences / own_rows, 1e-3);
    EXPECT_GT(cosines / own_rows, 0.999);
    EXPECT_LE(other_rows, own_rows / 10);
    rows += own_rows;
  }
  EXPECT_GE(same_top, 0.97 * rows);
}

// A checkpoint of random codes and scales, and one of the values that these stand for, while it lives. Of all ranks.
class QuantisedPair {
 public:
  QuantisedPair(const Communicator& world, const ModelConfig& config, const WeightType& type) : world_(world) {
    const pid_t pid = getpid();
    const auto bytes = world.broadcast(
        {reinterpret_cast<const std::byte*>(&pid), reinterpret_cast<const std::byte*>(&pid) + sizeof pid}, 0);
    pid_t first;
    std::memcpy(&first, bytes.data(), sizeof first);
    folder_ = std::filesystem::temp_directory_path() / fmt::format("family_test.{}", first);
    if (world.rank() == 0) {
      std::filesystem::create_directory(folder_);
      write_quantised_pair(codes(), values(), config, type, /*seed=*/5);
    }
    world.barrier();
  }
  ~QuantisedPair() {
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove_all(folder_);
  }
  QuantisedPair(const QuantisedPair&) = delete;
  QuantisedPair& operator=(const QuantisedPair&) = delete;

  std::string codes() const { return folder_ / "codes.h5"; }
  std::string values() const { return folder_ / "values.h5"; }

 private:
  const Communicator& world_;
  std::filesystem::path folder_;
};

// With the inputs of a fixture, whose vocabulary is the configuration's.
void expect_like_values(const Communicator& world, const std::string& fixture, const ModelConfig& config,
                        WeightType type) {
  SCOPED_TRACE(fmt::format("{}: {} with scales of {}", fixture, name_of(type), name_of(type.scales)));
  const std::unique_ptr<Device> device = make_test_device({});
  const std::unique_ptr<Ops> ops = on_cpu() ? make_cpu_ops(*device) : make_cuda_ops(*device);
  type = ops->weight_type(type);
  const QuantisedPair pair(world, config, type);
  for (const MeshShape shape : meshes(world.size())) {
    SCOPED_TRACE(fmt::format("on {}x{}", shape.tp, shape.pp));
    Model codes(shape, pair.codes(), world), values(shape, pair.values(), world);
    const std::vector<Result> of_codes = compute(codes, Expected(fixture));
    const std::vector<Result> of_values = compute(values, Expected(fixture));
    for (std::size_t i = 0; i < of_codes.size() && codes.reports(); ++i) {
      // Random weights amplify what integers round: 0.0102 is the most that was seen (gpt-oss on three ranks). An
      // image's 17 rows of codes have an order of sums of their own on CUDA (kernels/cuda/gemm.h), of which what is
      // rounded to bfloat16 behind it shows: 0.0183.
      const bool reordered = !on_cpu() && config.takes_images();
      const double at_most = reordered ? 3e-2 : codes.multiplies_integers() ? 1.5e-2 : 0;
      EXPECT_LE(relative_distance(of_codes[i].actual, of_values[i].actual), at_most) << of_codes[i].name;
      EXPECT_NE(of_codes[i].actual.front(), of_codes[i].actual.back()) << "the test says nothing";
    }
  }
}

// Quantised weights are multiplied as the values are that they stand for: on every mesh, to the last bit, but for what
// expect_like_values() says.
TEST(Families, QuantisedWeightsComputeWhatTheirValuesDo) {
  const Communicator world = Communicator::world();
  const WeightType type(DType::kBF16, DType::kInt8, DType::kF16, WeightType::kWholeRow);
  for (const std::string& family : family_names()) expect_like_values(world, family, config_of(family), type);
}

TEST(Families, EveryQuantisedTypeGivesWhatItsValuesDo) {
  const Communicator world = Communicator::world();
  constexpr int kRow = WeightType::kWholeRow;
  ModelConfig config = config_of("llama3");
  config.hidden = 128;
  config.ffn = 384;  // which 1 to 4 ranks cut between groups of 32, and of 64 into 32
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 32;
  for (const auto& [codes, scales, group] :
       {std::tuple(DType::kInt8, DType::kBF16, 32), std::tuple(DType::kInt8, DType::kF32, 64),
        std::tuple(DType::kFp8, DType::kBF16, 32), std::tuple(DType::kFp8, DType::kF32, 128),
        std::tuple(DType::kFp8, DType::kF32, kRow), std::tuple(DType::kInt4, DType::kBF16, 32),
        std::tuple(DType::kInt4, DType::kF16, 64), std::tuple(DType::kInt4, DType::kE8M0, 16),
        std::tuple(DType::kFp4, DType::kE8M0, 32), std::tuple(DType::kFp4, DType::kE4M3, 16)}) {
    const WeightType type{DType::kBF16, codes, scales, group};
    if (type.has_factors() && !on_cpu()) {
      EXPECT_THROW(expect_like_values(world, "llama3", config, type), ConfigError) << "CUDA has no kernels for these";
    } else {
      expect_like_values(world, "llama3", config, type);
    }
  }
}

}  // namespace
}  // namespace computron::test
