#include "computron/model/quantisation.h"

#include <gmock/gmock.h>

#include "computron/base/error.h"

namespace computron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<TensorToWrite> plain(const std::vector<TensorSpec>& specs) {
  std::vector<TensorToWrite> tensors;
  for (const TensorSpec& spec : specs) {
    tensors.push_back({{spec.name, DType::kF16, spec.shape, spec.transposed}, DType::kF16});
  }
  return tensors;
}

ModelConfig config_of(const std::string& arch, const std::string& size) {
  ModelConfig config = ModelConfig::named(arch, size);
  config.layers = 1;
  return config;
}

std::vector<std::string> quantised_names(const ModelConfig& config, const Quantisation& quantisation) {
  const auto specs = tensor_specs(config);
  auto tensors = plain(specs);
  quantise(config, specs, quantisation, tensors);
  std::vector<std::string> names;
  for (const TensorToWrite& tensor : tensors) {
    if (!tensor.quantised()) continue;
    names.push_back(tensor.declaration.name);
    EXPECT_EQ(tensor.declaration.dtype, quantisation.codes);
    EXPECT_EQ(tensor.declaration.group, quantisation.group);
    EXPECT_EQ(tensor.values, DType::kF16);
  }
  return names;
}

std::string refusal(const ModelConfig& config, const Quantisation& quantisation) try {
  quantised_names(config, quantisation);
  return "";
} catch (const ConfigError& error) {
  return error.what();
}

TEST(Quantisation, MatricesOfLayers) {
  EXPECT_THAT(quantised_names(config_of("opt", "125m"), {}),
              testing::ElementsAre("layers.0.attention.query.weight", "layers.0.attention.key.weight",
                                   "layers.0.attention.value.weight", "layers.0.attention.output.weight",
                                   "layers.0.mlp.up.weight", "layers.0.mlp.down.weight"));
  EXPECT_EQ(quantised_names(config_of("mixtral", "8x7b"), {}).size(), 4u + 8 * 3);  // no router
  EXPECT_EQ(quantised_names(config_of("bert", "base"), {}).size(), 6u);             // no pooler, no classifier
  EXPECT_EQ(quantised_names(config_of("vit", "base"), {}).size(), 6u);              // no patches
}

TEST(Quantisation, TheHeadOrWhatItIsTiedTo) {
  const Quantisation with_head{.head = true};
  EXPECT_EQ(quantised_names(config_of("opt", "125m"), with_head).front(), "embedding.tokens.weight");
  EXPECT_EQ(quantised_names(config_of("llama", "3.1-8b"), with_head).back(), "head.weight");
  EXPECT_THAT(refusal(config_of("bert", "base"), with_head), HasSubstr("--quantize-head"));
}

TEST(Quantisation, NamesWhatCannotBeQuantised) {
  ModelConfig config = config_of("llama", "3.2-1b");
  config.ffn = 8200;
  EXPECT_THAT(refusal(config, {}),
              AllOf(HasSubstr("layers.0.mlp.down.weight: rows of 8200 values"), HasSubstr("--group-size row")));
  EXPECT_EQ(refusal(config, {.group = WeightType::kWholeRow}), "");
  EXPECT_THAT(refusal(config, {.codes = DType::kInt4}), HasSubstr("int8 or fp8 with --group-size row"));
  config.hidden = 64;
  config.heads = config.kv_heads = 1;
  config.head_dim = 63;
  EXPECT_THAT(refusal(config, {}), HasSubstr("layers.0.attention.output.weight: rows of 63 values"));
}

}  // namespace
}  // namespace computron
