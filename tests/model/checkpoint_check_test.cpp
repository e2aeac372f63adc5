#include "computron/model/checkpoint_check.h"

#include <gmock/gmock.h>

#include <functional>

#include "computron/base/error.h"

namespace computron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ModelConfig small() {
  ModelConfig config = ModelConfig::named("opt", "125m");
  config.layers = 2;
  return config;
}

// The index of a checkpoint that fits small(), in f16 but for float32 vectors.
CheckpointIndex fitting() {
  CheckpointIndex index;
  index.path = "m.h5";
  index.architecture = "opt";
  for (const TensorSpec& spec : tensor_specs(small())) {
    TensorEntry entry;
    entry.name = spec.name;
    entry.dtype = spec.role == TensorRole::kVector ? DType::kF32 : DType::kF16;
    entry.shape = spec.shape;
    entry.transposed = spec.transposed;
    index.tensors.emplace(entry.name, entry);
  }
  return index;
}

std::string refusal(const std::function<void(CheckpointIndex&)>& change) {
  CheckpointIndex index = fitting();
  change(index);
  try {
    check_tensors(small(), index);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckTensors, AcceptsWhatFits) {
  EXPECT_EQ(refusal([](CheckpointIndex&) {}), "");
}

TEST(CheckTensors, NamesOneDifference) {
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.tensors.erase("layers.1.mlp.up.bias"); }),
              AllOf(StartsWith("m.h5: 1 difference "), HasSubstr("layers.1.mlp.up.bias: missing")));
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.tensors["stray"].name = "stray"; }),
              HasSubstr("stray: stored, but not part of the model"));
  EXPECT_THAT(refusal([](CheckpointIndex& index) {
                index.tensors["layers.0.mlp.up.weight"].shape = {3072, 767};
              }),
              HasSubstr("layers.0.mlp.up.weight: shape [3072, 768] expected, [3072, 767] stored"));
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.tensors["layers.0.mlp.down.weight"].transposed = false; }),
              HasSubstr("layers.0.mlp.down.weight: [in][out] expected, [out][in] stored"));
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.tensors["layers.0.mlp.up.weight"].dtype = DType::kBF16; }),
              HasSubstr("layers.0.mlp.up.weight: bf16 stored, but embedding.tokens.weight is f16"));
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.architecture = "llama"; }),
              AllOf(HasSubstr("'opt'"), HasSubstr("'llama'")));
}

TEST(CheckTensors, ListsTenAndCountsTheRest) {
  const auto what = refusal([](CheckpointIndex& index) { index.tensors.clear(); });
  EXPECT_THAT(what, AllOf(HasSubstr("36 differences"), HasSubstr("and 26 more"), HasSubstr("embedding.tokens.weight"),
                          Not(HasSubstr("final_norm"))));
}

}  // namespace
}  // namespace computron
