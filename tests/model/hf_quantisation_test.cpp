// What config.json says of quantised weights: the schemes that are read, and what is refused by name.
#include "computron/model/hf_quantisation.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace computron::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

HfQuantisation read(const json& settings, const char* key = "quantization_config") {
  return HfQuantisation::read(json{{"model_type", "llama"}, {key, settings}}.dump()).value();
}

std::string refusal(const json& settings) {
  try {
    read(settings);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

json compressed(const json& weights, const std::string& format = "int-quantized") {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
          {"ignore", {"lm_head", "re:.*router"}}};
}

json gptq(const json& changes = json::object()) {
  json settings = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}, {"desc_act", false}};
  settings.update(changes);
  return settings;
}

TEST(HfQuantisation, PlainFoldersHaveNone) {
  EXPECT_FALSE(HfQuantisation::read(R"({"model_type": "llama"})"));
  EXPECT_FALSE(HfQuantisation::read(R"({"model_type": "llama", "quantization_config": null})"));
}

TEST(HfQuantisation, Strategies) {
  const auto scheme = [](json weights) {
    weights.update({{"num_bits", 8}, {"type", "int"}});
    return read(compressed(weights)).schemes.at(0);
  };
  EXPECT_EQ(scheme({{"strategy", "tensor"}}).rows, HfScheme::kAllRows);
  EXPECT_EQ(scheme({{"strategy", "channel"}, {"actorder", "static"}}).rows, 1);
  EXPECT_EQ(scheme({{"strategy", "channel"}}).group, WeightType::kWholeRow);
  EXPECT_EQ(scheme({{"group_size", 64}}).group, 64);
  EXPECT_EQ(scheme({{"group_size", -1}}).group, WeightType::kWholeRow);
  EXPECT_EQ(scheme(json::object()).rows, HfScheme::kAllRows);
  const HfScheme block = scheme({{"strategy", "block"}, {"block_structure", {64, 128}}});
  EXPECT_EQ(block.rows, 64);
  EXPECT_EQ(block.group, 128);
  EXPECT_TRUE(block.last_group_may_be_short);
}

TEST(HfQuantisation, OldNameAndSeveralGroups) {
  json settings = compressed({{"num_bits", 4}, {"group_size", 32}}, "mixed-precision");
  json& groups = settings["config_groups"];
  groups["group_0"]["format"] = "pack-quantized";
  groups["group_1"] = {{"format", "float-quantized"},
                       {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}},
                       {"input_activations", {{"num_bits", 8}}}};
  groups["group_2"] = {{"weights", nullptr}};
  settings.erase("quant_method");
  const HfQuantisation quantisation = read(settings, "compression_config");
  ASSERT_EQ(quantisation.schemes.size(), 2u);
  EXPECT_EQ(quantisation.schemes[0].codes, DType::kInt4);
  EXPECT_EQ(quantisation.schemes[1].codes, DType::kFp8);
  EXPECT_TRUE(quantisation.activations);
}

TEST(HfQuantisation, Gptq) {
  EXPECT_EQ(read(gptq()).schemes.at(0).codes, DType::kInt4);
  EXPECT_EQ(read(gptq({{"bits", 8}, {"dynamic", {{"-:.*down.*", json::object()}}}})).schemes.at(0).codes, DType::kInt8);
  EXPECT_FALSE(read(gptq()).gptq_v2);
  EXPECT_TRUE(read(gptq({{"checkpoint_format", "gptq_v2"}})).gptq_v2);
}

void expect_fp4(const HfQuantisation& quantisation, DType scales, int group) {
  const HfScheme& scheme = quantisation.schemes.at(0);
  EXPECT_EQ(scheme.codes, DType::kFp4);
  EXPECT_EQ(scheme.scales, scales);
  EXPECT_EQ(scheme.group, group);
  EXPECT_EQ(scheme.rows, 1);
}

TEST(HfQuantisation, Fp4) {
  const json weights = {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  expect_fp4(read(compressed(weights, "nvfp4-pack-quantized")), DType::kE4M3, 16);
  expect_fp4(read(compressed({{"num_bits", 4}, {"type", "float"}}, "mxfp4-pack-quantized")), DType::kE8M0, 32);
  expect_fp4(read({{"quant_method", "mxfp4"}}), DType::kE8M0, 32);
  expect_fp4(read({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}), DType::kE4M3, 16);
  expect_fp4(read({{"quant_method", "modelopt_fp4"}, {"quantization", {{"quant_algo", "NVFP4"}}}}), DType::kE4M3, 16);
}

TEST(HfQuantisation, ModelOptsOwnFileCountsWhereConfigJsonSaysNothing) {
  const std::string plain = R"({"model_type": "llama"})";
  const std::string nvfp4 = R"({"producer": {}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}})";
  const auto found = HfQuantisation::read(plain, nvfp4);
  ASSERT_TRUE(found);
  expect_fp4(*found, DType::kE4M3, 16);
  EXPECT_FALSE(HfQuantisation::read(plain, R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})"));
  EXPECT_EQ(HfQuantisation::read(R"({"quantization_config": {"quant_method": "mxfp4"}})", nvfp4)->schemes.at(0).group,
            32);
  EXPECT_THROW(HfQuantisation::read(plain, R"({"quantization": {"quant_algo": "FP8"}})"), ConfigError);
  EXPECT_THROW(HfQuantisation::read(plain, "[]"), Error);
}

TEST(HfQuantisation, RefusesSettingsOfFp4ByName) {
  const auto refused = [](const json& changes, const std::string& format) {
    json weights = {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}};
    weights.update(changes);
    return refusal(compressed(weights, format));
  };
  EXPECT_EQ(refused({{"group_size", 32}}, "mxfp4-pack-quantized"), "");
  EXPECT_THAT(refused({{"group_size", 16}}, "mxfp4-pack-quantized"), HasSubstr("'group_size' is 16"));
  EXPECT_THAT(refused({{"group_size", 32}}, "nvfp4-pack-quantized"), HasSubstr("'group_size' is 32"));
  EXPECT_THAT(refused({{"type", "int"}}, "nvfp4-pack-quantized"), HasSubstr("'type'"));
  EXPECT_THAT(refused({{"num_bits", 8}}, "mxfp4-pack-quantized"), HasSubstr("'num_bits' is 8"));
  EXPECT_THAT(refused({{"strategy", "channel"}}, "mxfp4-pack-quantized"), HasSubstr("'strategy'"));
  EXPECT_THAT(refused({{"symmetric", false}}, "nvfp4-pack-quantized"), HasSubstr("'symmetric'"));
  EXPECT_THAT(refusal({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}), HasSubstr("'quant_algo'"));
  EXPECT_THAT(refusal({{"quant_method", "modelopt"}}), HasSubstr("'quant_algo'"));
  EXPECT_THAT(refusal({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 32}}),
              HasSubstr("'group_size'"));
}

TEST(HfQuantisation, RefusesOtherMethodsByName) {
  for (const char* method : {"awq", "bitsandbytes", "mxfp8", "fbgemm_fp8", "aqlm", "auto-round"}) {
    EXPECT_THAT(refusal({{"quant_method", method}}),
                AllOf(HasSubstr("'quant_method'"), HasSubstr(method),
                      HasSubstr("compressed-tensors, fp8, gptq, modelopt or mxfp4")));
  }
  EXPECT_THAT(refusal(json::object()), HasSubstr("'quant_method'"));
  EXPECT_THAT(refusal(json::array({1})), HasSubstr("'quantization_config'"));
}

TEST(HfQuantisation, RefusesSettingsByName) {
  const auto refused = [](const json& changes, const std::string& format = "pack-quantized") {
    json weights = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}};
    weights.update(changes);
    return refusal(compressed(weights, format));
  };
  EXPECT_EQ(refused(json::object()), "");
  EXPECT_THAT(refused({{"symmetric", false}}), HasSubstr("'symmetric'"));
  EXPECT_THAT(refused({{"actorder", "group"}}), HasSubstr("'actorder'"));
  EXPECT_THAT(refused({{"actorder", true}}), HasSubstr("'actorder'"));
  EXPECT_THAT(refused({{"num_bits", 3}}), HasSubstr("'num_bits' is 3"));
  EXPECT_THAT(refused({{"num_bits", 4}}, "int-quantized"), HasSubstr("'num_bits' is 4"));
  EXPECT_THAT(refused({{"type", "float"}}), HasSubstr("'type'"));
  EXPECT_THAT(refused({{"type", "float"}}, "int-quantized"), HasSubstr("'type'"));
  EXPECT_THAT(refused(json::object(), "float-quantized"), HasSubstr("'type'"));
  EXPECT_THAT(refused({{"strategy", "tensor_group"}}), HasSubstr("'strategy'"));
  EXPECT_THAT(refused({{"group_size", 8}}), HasSubstr("'group_size' is 8"));
  EXPECT_THAT(refused({{"strategy", "block"}}), HasSubstr("'block_structure'"));
  EXPECT_THAT(refused({{"strategy", "block"}, {"block_structure", {128, 100}}}), HasSubstr("'block_structure'"));
  for (const char* format : {"mxfp8-quantized", "marlin-24", "dense", ""}) {
    EXPECT_THAT(refused(json::object(), format), HasSubstr("'format'")) << format;
  }
}

TEST(HfQuantisation, RefusesSettingsOfFoldersByName) {
  const auto refused = [](const json& changes) {
    json settings = compressed({{"num_bits", 8}});
    settings.update(changes);
    return refusal(settings);
  };
  EXPECT_THAT(refused({{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}), HasSubstr("'sparsity_config'"));
  EXPECT_THAT(refused({{"transform_config", {{"config_groups", {{"R1", 1}}}}}}), HasSubstr("'transform_config'"));
  EXPECT_THAT(refused({{"config_groups", json::object()}}), HasSubstr("'config_groups'"));
  EXPECT_THAT(refused({{"config_groups", {{"group_0", 5}}}}), HasSubstr("'group_0'"));
  const json fp8 = {{"quant_method", "fp8"}};
  EXPECT_THAT(refusal(fp8), HasSubstr("'weight_block_size'"));
  EXPECT_THAT(refusal({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), HasSubstr("'fmt'"));
  EXPECT_THAT(refusal(gptq({{"bits", 3}})), HasSubstr("'bits' is 3"));
  EXPECT_THAT(refusal(gptq({{"sym", false}})), HasSubstr("'sym'"));
  EXPECT_THAT(refusal(gptq({{"desc_act", true}})), HasSubstr("'desc_act'"));
  EXPECT_THAT(refusal(gptq({{"group_size", 0}})), HasSubstr("'group_size'"));
  EXPECT_THAT(refusal(gptq({{"checkpoint_format", "marlin"}})), HasSubstr("'checkpoint_format'"));
  EXPECT_THAT(refusal(gptq({{"is_marlin_format", true}})), HasSubstr("marlin"));
  EXPECT_THAT(refusal(gptq({{"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}})), HasSubstr("'dynamic'"));
}

}  // namespace
}  // namespace computron::test
