// 16-bit floating-point values as float32.
#pragma once

#include <cstddef>

#include "computron/base/types.h"

namespace computron {

// out[i] = value i of `in`, for i < count; exact. `in`: float16 or bfloat16, of any alignment.
void widen(const std::byte* in, DType dtype, float* out, std::size_t count);

}  // namespace computron
