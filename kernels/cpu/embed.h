// Rows of an embedding out of its packed GEMM layout: the same pages serve a tied output head.
#pragma once

#include <cstddef>

#include "computron/base/weight_type.h"

namespace computron::kernels {

// out[k] = weight[row, k] for k < depth, from a packed panel (pack.h), as float32.
void embed_row(const std::byte* packed, int row, int depth, const WeightType& type, float* out);

}  // namespace computron::kernels
