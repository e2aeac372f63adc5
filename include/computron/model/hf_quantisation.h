// What a Hugging Face config.json says of weights that are quantised already: methods whose codes and scales this
// program takes as they are.
//
//   compressed-tensors   int-quantized, naive-quantized, float-quantized, pack-quantized, mxfp4-pack-quantized,
//                        nvfp4-pack-quantized; symmetric
//   fp8                  of DeepSeek and Qwen, scaled by blocks
//   gptq                 4 and 8 bits, symmetric, in the order of the activations
//   modelopt             NVFP4
//   mxfp4                of gpt-oss
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/base/weight_type.h"

namespace computron {

// How codes and scales of a weight [out, in] belong together: scales [ceil(out / rows), ceil(in / group)].
struct HfScheme {
  static constexpr int kAllRows = 1 << 30;

  DType codes = DType::kInt8;
  DType scales = DType::kF32;            // e8m0, e4m3, or f32 for any plain type
  int rows = 1;                          // that share scales
  int group = WeightType::kWholeRow;     // values along `in` that share one
  bool last_group_may_be_short = false;  // blocks are cut where a weight ends
};

struct HfQuantisation {
  enum class Method : std::uint8_t { kCompressedTensors, kFp8, kGptq, kModelOpt, kMxfp4 };

  Method method = Method::kCompressedTensors;
  std::vector<HfScheme> schemes;  // one weight may have this, another that; one at least
  bool gptq_v2 = false;           // zeros are stored as they are, and not less one
  bool activations = false;       // it says how activations or caches are quantised, which is not done here

  // Nothing if the weights are plain. `hf_quant_config`: modelopt's hf_quant_config.json, which counts where
  // config.json says nothing. ConfigError naming the key whose value is not supported.
  static std::optional<HfQuantisation> read(const std::string& config_json,
                                            const std::optional<std::string>& hf_quant_config = {});
};

}  // namespace computron
