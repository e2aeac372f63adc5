// Rows of float32 into another element type.
#pragma once

#include <cstddef>

#include "computron/base/types.h"

namespace computron::kernels {

// out[i] = in[i] for i < n; out holds float32 or bfloat16 (rounded to nearest even). Does not alias unless the same.
void convert(const float* in, int n, std::byte* out, DType dtype);

}  // namespace computron::kernels
