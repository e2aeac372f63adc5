// Rows of an embedding out of its packed GEMM layout: the same pages serve a tied output head.
#pragma once

#include <cstddef>

#include "computron/base/types.h"

namespace computron::kernels {

// out[k] = weight[row, k] for k < depth, from a packed panel (pack.h); widened to float32.
void embed_row(const std::byte* packed, int row, int depth, DType dtype, float* out);

}  // namespace computron::kernels
