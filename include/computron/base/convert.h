// Arrays of weights: from one element type into another, and what is no number in them.
#pragma once

#include <cstddef>

#include "computron/base/types.h"

namespace computron {

// out[i] = in[i] for i < n. Widening is exact. Narrowing rounds to nearest even and saturates: a finite value beyond
// the largest of the new type becomes that largest (f16 65504, bf16 3.39e38), an infinity stays one, NaN stays NaN.
// Between equal types the bytes are copied. Neither needs alignment; they do not overlap.
void convert_elements(const std::byte* in, DType from, std::byte* out, DType to, std::size_t n);

// How many of n elements are NaN or an infinity; of codes, e8m0 and e4m3, NaN. Needs no alignment.
std::size_t count_not_finite(const std::byte* elements, DType type, std::size_t n);
// How many of n elements of a type that scales have are less than zero. Needs no alignment.
std::size_t count_negative(const std::byte* elements, DType type, std::size_t n);

}  // namespace computron
