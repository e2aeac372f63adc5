#include "kernels/cuda/element.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/skinny.cuh"

namespace computron::kernels::cuda {
namespace {

// A block a tile of kTileRows weight rows, all rows of x; the weight of the next round is under way while one is
// multiplied, that of the first before x is there. kColumns: tiles of eight rows of x.
template <class T, int kColumns>
__global__ void __launch_bounds__(kSkinnyThreads, 2) skinny_kernel(const __grid_constant__ GemmCall p) {
  const RowRun& run = p.runs.with_tile(static_cast<int>(blockIdx.x));
  const int row = (static_cast<int>(blockIdx.x) - run.first_tile) * kTileRows;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4;
  const std::size_t depth = p.depth;
  const T* weight = reinterpret_cast<const T*>(run.data) + (row + g) * depth;

  const auto load = [&](int round, uint4(&to)[kUnroll][2]) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = depth_of(warp, round, u, lane);
      to[u][0] = k < p.depth ? load_once(weight + k) : uint4{};
      to[u][1] = k < p.depth ? load_once(weight + 8 * depth + k) : uint4{};
    }
  };
  const int rounds = skinny_rounds(p.depth);

  float acc[kColumns][4] = {};
  uint4 next[kUnroll][2];
  load(0, next);
  wait_for_previous_kernel();
  let_next_kernel_begin();
  for (int round = 0; round < rounds; ++round) {
    uint4 a[kUnroll][2], b[kUnroll][kColumns];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      a[u][0] = next[u][0];
      a[u][1] = next[u][1];
    }
    if (round + 1 < rounds) load(round + 1, next);
    load_x<T>(p, warp, round, lane, b);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        mma(T{}, acc[n], a[u][0].x, a[u][1].x, a[u][0].y, a[u][1].y, b[u][n].x, b[u][n].y);
        mma(T{}, acc[n], a[u][0].z, a[u][1].z, a[u][0].w, a[u][1].w, b[u][n].z, b[u][n].w);
      }
    }
  }
  sum_warps(p, run, row, acc);
}

// A block a tile of kTileRows weight rows, kPlainRows rows of x; each warp takes every eighth row.
template <class T>
__global__ void __launch_bounds__(kSkinnyThreads) plain_kernel(const __grid_constant__ GemmCall p) {
  begin_overlapped();
  const RowRun& run = p.runs.with_tile(static_cast<int>(blockIdx.x));
  const int tile = (static_cast<int>(blockIdx.x) - run.first_tile) * kTileRows;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int first = static_cast<int>(blockIdx.y) * kPlainRows;
  const std::size_t depth = p.depth;
  const T* x = reinterpret_cast<const T*>(p.x);
  for (int row = tile + warp; row < tile + kTileRows && row < run.rows; row += kSkinnyWarps) {
    const T* weight = reinterpret_cast<const T*>(run.data) + row * depth;
    float sums[kPlainRows] = {};
#pragma unroll 4
    for (int k = lane; k < p.depth; k += kWarp) {
      const float w = widen(weight[k]);
#pragma unroll
      for (int m = 0; m < kPlainRows; ++m) {
        if (first + m < p.rows) sums[m] = fmaf(widen(x[(first + m) * depth + k]), w, sums[m]);
      }
    }
#pragma unroll
    for (int m = 0; m < kPlainRows; ++m) {
      const float sum = warp_sum(sums[m]);
      if (lane == 0 && first + m < p.rows) finish(p, first + m, run.row_begin + row, sum);
    }
  }
}

template <class T>
void launch_skinny(CUstream_st* stream, const GemmCall& call) {
  const auto tiles = static_cast<unsigned>(call.runs.tiles);
  if (call.rows <= 8) {
    launch_overlapped(tiles, kSkinnyThreads, 0, stream, skinny_kernel<T, 1>, call);
  } else {
    launch_overlapped(tiles, kSkinnyThreads, 0, stream, skinny_kernel<T, 2>, call);
  }
}

template <class T>
void launch_plain(CUstream_st* stream, const GemmCall& call) {
  const dim3 grid(static_cast<unsigned>(call.runs.tiles), static_cast<unsigned>(ceil_div(call.rows, kPlainRows)));
  launch_overlapped(grid, kSkinnyThreads, 0, stream, plain_kernel<T>, call);
}

}  // namespace

void skinny_gemm(CUstream_st* stream, const GemmCall& call) {
  if (call.rows == 0 || call.runs.tiles == 0) return;
  if (call.tiles.quantised()) return skinny_quantised_gemm(stream, call);
  call.dtype == DType::kBF16 ? launch_skinny<BFloat16>(stream, call) : launch_skinny<Float16>(stream, call);
}

void plain_gemm(CUstream_st* stream, const GemmCall& call) {
  if (call.rows == 0 || call.runs.tiles == 0) return;
  with_element(call.dtype, [&]<class T>(T) { launch_plain<T>(stream, call); });
}

}  // namespace computron::kernels::cuda
