#include "computron/model/checkpoint_check.h"

#include <fmt/format.h>
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

// A weight becomes codes with scales of bfloat16.
void quantise_entry(CheckpointIndex& index, const std::string& name, DType codes, int group) {
  TensorEntry& weight = index.tensors.at(name);
  weight.dtype = codes;
  weight.group = group;
  TensorEntry scales;
  scales.name = scales_name(name);
  scales.dtype = DType::kBF16;
  scales.shape = scales_shape(weight.shape, weight.transposed, group);
  scales.transposed = weight.transposed;
  index.tensors.emplace(scales.name, scales);
}

void quantise_layer(CheckpointIndex& index, DType codes, int group) {
  for (const char* part :
       {"attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down"}) {
    quantise_entry(index, fmt::format("layers.0.{}.weight", part), codes, group);
  }
}

TEST(CheckTensors, AcceptsQuantisedWeights) {
  EXPECT_EQ(refusal([](CheckpointIndex& index) { quantise_layer(index, DType::kInt8, 32); }), "");
  EXPECT_EQ(refusal([](CheckpointIndex& index) { quantise_layer(index, DType::kFp8, WeightType::kWholeRow); }), "");
  EXPECT_EQ(refusal([](CheckpointIndex& index) {
              quantise_entry(index, "embedding.tokens.weight", DType::kInt4, 64);
              index.tensors["embedding.tokens.weight.scales"].dtype = DType::kE8M0;
            }),
            "");
}

TEST(CheckTensors, ScalesMustFit) {
  const auto without = [](const std::function<void(TensorEntry&)>& change) {
    return refusal([&](CheckpointIndex& index) {
      quantise_layer(index, DType::kInt8, 32);
      change(index.tensors.at("layers.0.mlp.down.weight.scales"));
    });
  };
  EXPECT_THAT(without([](TensorEntry& scales) {
                scales.shape = {95, 768};
              }),
              HasSubstr("layers.0.mlp.down.weight.scales: shape [96, 768] expected, [95, 768] stored"));
  EXPECT_THAT(without([](TensorEntry& scales) { scales.transposed = false; }),
              HasSubstr("layers.0.mlp.down.weight.scales: [in][out] expected"));
  EXPECT_THAT(without([](TensorEntry& scales) { scales.dtype = DType::kInt8; }),
              HasSubstr("layers.0.mlp.down.weight.scales: int8 stored, scales are f32"));
  EXPECT_THAT(refusal([](CheckpointIndex& index) {
                quantise_layer(index, DType::kInt8, 32);
                index.tensors.erase("layers.0.mlp.down.weight.scales");
              }),
              AllOf(HasSubstr("1 difference "), HasSubstr("layers.0.mlp.down.weight.scales: missing"),
                    HasSubstr("layers.0.mlp.down.weight is int8")));
  EXPECT_THAT(refusal([](CheckpointIndex& index) {
                quantise_layer(index, DType::kInt8, 32);
                index.tensors["layers.0.mlp.down.weight"].dtype = DType::kF16;
                index.tensors["layers.0.mlp.down.weight"].group = 0;
              }),
              AllOf(HasSubstr("1 difference "),
                    HasSubstr("layers.0.mlp.down.weight.scales: stored, but not part of the model")));
}

TEST(CheckTensors, OnlyWeightsAreQuantised) {
  EXPECT_THAT(
      refusal([](CheckpointIndex& index) { quantise_entry(index, "embedding.positions.weight", DType::kInt8, 32); }),
      AllOf(HasSubstr("1 difference "), HasSubstr("embedding.positions.weight: int8 stored")));
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.tensors["final_norm.bias"].dtype = DType::kE8M0; }),
              HasSubstr("final_norm.bias: e8m0 stored"));
  EXPECT_THAT(refusal([](CheckpointIndex& index) { index.tensors["layers.0.mlp.up.weight"].dtype = DType::kE8M0; }),
              HasSubstr("layers.0.mlp.up.weight: e8m0 stored"));
}

TEST(CheckTensors, WhatIsMultipliedAsOneIsOfOneType) {
  const auto with_other_key = [](const std::function<void(CheckpointIndex&)>& change) {
    return refusal([&](CheckpointIndex& index) {
      quantise_layer(index, DType::kInt8, 32);
      index.tensors.erase("layers.0.attention.key.weight.scales");
      index.tensors["layers.0.attention.key.weight"].group = 0;
      index.tensors["layers.0.attention.key.weight"].dtype = DType::kF16;
      change(index);
    });
  };
  EXPECT_THAT(with_other_key([](CheckpointIndex&) {}),
              AllOf(HasSubstr("layers.0.attention.key.weight: f16 stored, but layers.0.attention.query.weight"),
                    HasSubstr("is int8 in groups of 32 with scales of bf16")));
  EXPECT_THAT(with_other_key([](CheckpointIndex& index) {
                quantise_entry(index, "layers.0.attention.key.weight", DType::kInt8, 64);
              }),
              HasSubstr("layers.0.attention.key.weight: int8 in groups of 64"));
  EXPECT_THAT(with_other_key([](CheckpointIndex& index) {
                quantise_entry(index, "layers.0.attention.key.weight", DType::kInt8, 32);
                index.tensors["layers.0.attention.key.weight.scales"].dtype = DType::kF32;
              }),
              HasSubstr("key.weight: int8 in groups of 32 with scales of f32"));
  EXPECT_EQ(with_other_key([](CheckpointIndex& index) {
              quantise_entry(index, "layers.0.attention.key.weight", DType::kInt8, 32);
              quantise_entry(index, "layers.1.mlp.up.weight", DType::kFp8, WeightType::kWholeRow);
            }),
            "");
}

TEST(StoredWeightType, IsThatOfCodesAndScales) {
  CheckpointIndex index = fitting();
  quantise_layer(index, DType::kInt4, 32);
  EXPECT_EQ(stored_weight_type(index, "layers.1.mlp.up.weight"), WeightType(DType::kF16));
  EXPECT_EQ(stored_weight_type(index, "layers.0.mlp.up.weight"),
            WeightType(DType::kBF16, DType::kInt4, DType::kBF16, 32));
}

}  // namespace
}  // namespace computron
