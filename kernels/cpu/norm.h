// LayerNorm and RMSNorm of one row, statistics in float32.
#pragma once

#include <cstddef>

#include "computron/base/types.h"
#include "computron/kernels/types.h"

namespace computron::kernels {

// out[i] = (x[i] - mean) / sqrt(variance + epsilon) × weight[i] + bias[i] for i < n, or without the mean (RMSNorm).
// The mean first, then the variance about it. weight and bias may be null; out (float32 or bfloat16) may be x.
void norm(NormKind kind, const float* x, int n, const float* weight, const float* bias, float epsilon, std::byte* out,
          DType dtype);

}  // namespace computron::kernels
