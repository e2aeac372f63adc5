// What products of few rows share: how they read x, and how they end. Every warp of a block has sums over its part of
// the depth.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {

inline constexpr int kSkinnyThreads = kSkinnyWarps * kWarp;

// What a lane holds of x for a round (gemm.h, depth_of): 16 bytes of each K slice and eight rows, zeros behind the
// last.
template <class T, int kColumns>
__device__ void load_x(const GemmCall& p, int warp, int round, int lane, uint4 (&to)[kUnroll][kColumns]) {
  const std::size_t depth = p.depth;
  const T* x = reinterpret_cast<const T*>(p.x) + lane / 4 * depth;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int k = depth_of(warp, round, u, lane);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const bool wanted = k < p.depth && lane / 4 + 8 * n < p.rows;
      to[u][n] = wanted ? *reinterpret_cast<const uint4*>(x + 8 * n * depth + k) : uint4{};
    }
  }
}

// Result (m, n) of the sum `value`; n is a row of the weight.
__device__ inline void finish(const GemmCall& p, int m, int n, float value) {
  const float sum = p.bias == nullptr ? value : value + p.bias[n];
  store(activate(p.activation, sum), p.out, p.out_dtype, static_cast<std::size_t>(m) * p.out_columns + n);
}

// Results of the weight rows [row, row + kTileRows) of `run`, as far as it has them: the sums of the warps, in their
// order. acc: of mma(), for each eight rows of x.
template <int kColumns>
__device__ void sum_warps(const GemmCall& p, const RowRun& run, int row, const float (&acc)[kColumns][4]) {
  __shared__ float sums[kSkinnyWarps][8 * kColumns][kTileRows];
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][8 * n + 2 * t + i % 2][g + 8 * (i / 2)] = acc[n][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * kColumns * kTileRows; i += kSkinnyThreads) {
    const int m = i / kTileRows, r = i % kTileRows;
    if (m >= p.rows || row + r >= run.rows) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kSkinnyWarps; ++w) sum += sums[w][m][r];
    finish(p, m, run.row_begin + row + r, sum);
  }
}

}  // namespace computron::kernels::cuda
