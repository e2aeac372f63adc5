// Which weights are quantised when a model's checkpoint is written.
#pragma once

#include <vector>

#include "computron/checkpoint/write_tensors.h"
#include "computron/model/config.h"

namespace computron {

// The matrices of the layers; not routers, which choose between experts by small differences, nor the rows that gate
// what is beside them, and neither embeddings nor what turns the last layer's output into results.
struct Quantisation {
  static constexpr int kGroup = 32;

  DType codes = DType::kInt8;
  int group = kGroup;  // or WeightType::kWholeRow
  bool head = false;   // a decoder's head too; a tied one is the embedding
};

// `tensors` are those of `specs`, plain: the ones that are to be quantised become so. ConfigError naming the first that
// cannot be, or saying that there is no head.
void quantise(const ModelConfig& config, const std::vector<TensorSpec>& specs, const Quantisation& quantisation,
              std::vector<TensorToWrite>& tensors);

}  // namespace computron
