// float16 weights × float32 rows: the weights are kept as they are and widened, exactly, on the way to the multiplier.
//
// Packed as bfloat16 is (pack.h). One row or a few stream through a block once and widen in registers; more rows take a
// block in K slices that are widened once for all of them and stay in the first cache. Either way every result is one
// chain of fused multiply-adds in the order of k.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/pack.h"

namespace computron::kernels {

inline constexpr int kF16KSlice = 128;     // 32 KiB of a block, widened
inline constexpr int kF16DirectRows = 48;  // more rows are worth a widened copy
// Floats of scratch memory that a call needs, at whole cache lines.
constexpr std::size_t f16_scratch(int depth) {
  return std::max<std::size_t>(kF16KSlice * kRowBlock, static_cast<std::size_t>(kF16DirectRows) * depth);
}

// tile[m, n] = Σ_k x[m, k] weight[n, k]; x: [rows, depth], weight: [columns / 64][depth / 2][64][2] float16, depth
// even, tile: [rows, columns]; scratch: f16_scratch(depth).
void gemm_f16_avx2(const float* x, int rows, int depth, const std::byte* weight, int columns, float* tile,
                   float* scratch);
void gemm_f16_avx512(const float* x, int rows, int depth, const std::byte* weight, int columns, float* tile,
                     float* scratch);

}  // namespace computron::kernels
