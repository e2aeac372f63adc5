// Products with the two thin matrices of a low-rank adapter (Hu et al. 2021), of float32 or bfloat16, in float32. How
// they lie in memory and in which order their products are summed: LowRankPart in computron/ops/ops.h.
#pragma once

#include <cstddef>

#include "computron/base/types.h"

namespace computron::kernels {

inline constexpr int kLowRankOutputs = 16;  // of a block of B
inline constexpr int kLowRankSums = 4;      // chains

// sums[r, i % 4, k] += x[r, i] × a[i, k] for r < rows, i < n ascending, k < rank. x: rows `x_stride` floats apart; a:
// [n, rank] of `dtype`; sums: [rows, 4, rank].
void add_low_rank_in(const float* x, int x_stride, int rows, int n, const std::byte* a, DType dtype, int rank,
                     float* sums);

// sums[k] = factor × ((sums[0, k] + sums[1, k]) + (sums[2, k] + sums[3, k])) of sums [4, rank]: the others stay.
void join_low_rank(float factor, int rank, float* sums);

// out[r, o] += Σ_k sums[r, k] × b[o, k] for r < rows and o < n, k ascending. sums: rows of join_low_rank(), 4 × rank
// floats apart; b: [n / 16][rank][16] of `dtype`; rows of `out` lie `stride` floats apart.
void add_low_rank_out(const float* sums, int rows, int rank, const std::byte* b, DType dtype, int n, float* out,
                      int stride);

}  // namespace computron::kernels
