#include <gmock/gmock.h>

#include "computron/model/config.h"

namespace computron {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

ModelConfig one_layer() {
  ModelConfig config;
  config.architecture = "opt";
  config.layers = 1;
  config.hidden = 64;
  config.heads = 4;
  config.kv_heads = 4;
  config.head_dim = 16;
  config.ffn = 256;
  config.vocab = 100;
  config.max_positions = 32;
  config.position_offset = 2;
  return config;
}

std::vector<std::string> names_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(config)) names.push_back(spec.name);
  return names;
}

TensorSpec spec_of(const ModelConfig& config, const std::string& name) {
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (spec.name == name) return spec;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

TEST(TensorSpecs, ExecutionOrder) {
  EXPECT_THAT(names_of(one_layer()), ElementsAre("embedding.tokens.weight", "embedding.positions.weight",             //
                                                 "layers.0.attention_norm.weight", "layers.0.attention_norm.bias",    //
                                                 "layers.0.attention.query.weight", "layers.0.attention.query.bias",  //
                                                 "layers.0.attention.key.weight", "layers.0.attention.key.bias",      //
                                                 "layers.0.attention.value.weight", "layers.0.attention.value.bias",  //
                                                 "layers.0.attention.output.weight", "layers.0.attention.output.bias",
                                                 "layers.0.mlp_norm.weight", "layers.0.mlp_norm.bias",  //
                                                 "layers.0.mlp.up.weight", "layers.0.mlp.up.bias",      //
                                                 "layers.0.mlp.down.weight", "layers.0.mlp.down.bias",  //
                                                 "final_norm.weight", "final_norm.bias"));
}

TEST(TensorSpecs, FlagsTakeTensorsAwayAndAddThem) {
  ModelConfig config = one_layer();
  config.norm_bias = config.attention_bias = config.attention_output_bias = config.mlp_bias = false;
  config.gated_mlp = true;
  config.tied_head = false;
  config.positions = PositionKind::kRotary;
  config.norm_position = NormPosition::kPost;
  config.final_norm = false;
  EXPECT_THAT(names_of(config),
              ElementsAre("embedding.tokens.weight", "layers.0.attention.query.weight", "layers.0.attention.key.weight",
                          "layers.0.attention.value.weight", "layers.0.attention.output.weight",
                          "layers.0.attention_norm.weight", "layers.0.mlp.gate.weight", "layers.0.mlp.up.weight",
                          "layers.0.mlp.down.weight", "layers.0.mlp_norm.weight", "head.weight"));
}

TEST(TensorSpecs, WhatFollowsThePooledRow) {
  ModelConfig config = one_layer();
  config.layers = 1;
  config.causal = config.tied_head = config.final_norm = config.norm_bias = config.first_attention_norm = false;
  const auto after = [&] {
    const auto names = names_of(config);
    const auto down = std::ranges::find(names, "layers.0.mlp.down.bias");
    return std::vector<std::string>(down + 1, names.end());
  };
  EXPECT_THAT(names_of(config), Not(Contains("layers.0.attention_norm.weight")));
  EXPECT_THAT(names_of(config), Contains("layers.0.mlp_norm.weight"));
  config.dense = {{config.hidden, 5, true, Activation::kTanh}, {5, 3, false, Activation::kNone}};
  EXPECT_THAT(after(), ElementsAre("dense.0.weight", "dense.0.bias", "dense.1.weight"));
  EXPECT_THAT(tensor_specs(config).back().shape, ElementsAre(3, 5));
  config.dense = {};
  config.classes = 2;
  config.class_dense = config.class_norm = true;
  EXPECT_THAT(after(), ElementsAre("classifier.dense.weight", "classifier.dense.bias", "classifier.norm.weight",
                                   "classifier.weight", "classifier.bias"));
}

TEST(TensorSpecs, ShapesSplitsAndRoles) {
  ModelConfig config = one_layer();
  config.architecture = "other";
  config.kv_heads = 2;
  config.head_dim = 8;
  config.tied_head = false;
  const auto expect = [&](const char* name, TensorRole role, Split split, std::vector<std::size_t> shape,
                          bool transposed) {
    const TensorSpec spec = spec_of(config, name);
    EXPECT_EQ(spec.role, role) << name;
    EXPECT_EQ(spec.split, split) << name;
    EXPECT_EQ(spec.shape, shape) << name;
    EXPECT_EQ(spec.transposed, transposed) << name;
  };
  const auto gemm = TensorRole::kGemmWeight;
  expect("embedding.tokens.weight", gemm, Split::kVocab, {100, 64}, false);
  expect("embedding.positions.weight", TensorRole::kTable, Split::kNone, {34, 64}, false);
  expect("layers.0.attention.query.weight", gemm, Split::kHeads, {32, 64}, false);
  expect("layers.0.attention.query.bias", TensorRole::kVector, Split::kHeads, {32}, false);
  expect("layers.0.attention.value.weight", gemm, Split::kKvHeads, {16, 64}, false);
  expect("layers.0.attention.key.bias", TensorRole::kVector, Split::kKvHeads, {16}, false);
  expect("layers.0.attention.output.weight", gemm, Split::kHeads, {32, 64}, true);
  expect("layers.0.attention.output.bias", TensorRole::kVector, Split::kNone, {64}, false);
  expect("layers.0.mlp.up.weight", gemm, Split::kFfn, {256, 64}, false);
  expect("layers.0.mlp.up.bias", TensorRole::kVector, Split::kFfn, {256}, false);
  expect("layers.0.mlp.down.weight", gemm, Split::kFfn, {256, 64}, true);
  expect("layers.0.mlp.down.bias", TensorRole::kVector, Split::kNone, {64}, false);
  expect("final_norm.weight", TensorRole::kVector, Split::kNone, {64}, false);
  expect("head.weight", gemm, Split::kVocab, {100, 64}, false);
}

TEST(TensorSpecs, NormsOfQueriesAndKeysAndOfOutputs) {
  ModelConfig config = one_layer();
  config.norm = NormKind::kRmsNorm;
  config.norm_bias = config.attention_bias = config.attention_output_bias = config.mlp_bias = false;
  config.kv_heads = 2;
  config.norm_position = NormPosition::kSandwich;
  config.query_key_norm = QueryKeyNorm::kWidth;
  EXPECT_EQ(spec_of(config, "layers.0.attention.query_norm.weight").shape, std::vector<std::size_t>{64});
  EXPECT_EQ(spec_of(config, "layers.0.attention.query_norm.weight").split, Split::kHeads);
  EXPECT_EQ(spec_of(config, "layers.0.attention.key_norm.weight").shape, std::vector<std::size_t>{32});
  EXPECT_EQ(spec_of(config, "layers.0.attention.key_norm.weight").split, Split::kKvHeads);
  for (const char* name : {"attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm"}) {
    EXPECT_EQ(spec_of(config, std::string("layers.0.") + name + ".weight").shape, std::vector<std::size_t>{64});
  }
  config.norm_position = NormPosition::kOutput;
  config.query_key_norm = QueryKeyNorm::kHeads;
  EXPECT_EQ(spec_of(config, "layers.0.attention.key_norm.weight").shape, std::vector<std::size_t>{16});
  EXPECT_EQ(spec_of(config, "layers.0.attention.key_norm.weight").split, Split::kNone);
  EXPECT_THAT(names_of(config), Not(Contains("layers.0.mlp_norm.weight")));
}

TEST(TensorSpecs, LayersAreNumbered) {
  ModelConfig config = one_layer();
  config.layers = 12;
  const auto names = names_of(config);
  EXPECT_THAT(names, Contains("layers.11.mlp.down.bias"));
  EXPECT_THAT(names, Not(Contains("layers.12.mlp.down.bias")));
}

}  // namespace
}  // namespace computron
