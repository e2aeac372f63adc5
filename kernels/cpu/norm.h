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

// Σ x[i]² for i < n.
float sum_of_squares(const float* x, int n);

// inout[i] = inout[i] × scale × weight[i] for i < n, the weight as `kind` means it.
void apply_norm(NormKind kind, float scale, const float* weight, int n, float* inout);

}  // namespace computron::kernels
