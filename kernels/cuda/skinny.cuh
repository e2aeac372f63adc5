// What products of few rows share: how a lane finds its rows, how a block goes from tile to tile, and how sums leave.
// Every warp of a block has sums over its part of the depth.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {

inline constexpr int kSkinnyThreads = kSkinnyWarps * kWarp;

// Where a lane finds what it multiplies of the rows lane / 4, lane / 4 + 8, ... (gemm.h, depth_of) of `rows` that lie
// one behind the other: 16 bytes of each K slice, zeros behind the last row and the depth.
template <class T, int kOctets>
class LaneRows {
 public:
  __device__ LaneRows(const std::byte* first_row, int rows, int depth, int warp, int lane)
      : first_(depth_of(warp, 0, 0, lane)), depth_(depth) {
#pragma unroll
    for (int n = 0; n < kOctets; ++n) {
      const int row = lane / 4 + 8 * n;
      from_[n] = in_registers(first_row + (static_cast<std::size_t>(row) * depth + first_) * sizeof(T));
      there_[n] = row < rows;
    }
  }

  // load(address, whether it is there, to[n]) for K slice u of the round and the lane's n-th row.
  template <class Load>
  __device__ void load(int round, int u, uint4 (&to)[kOctets], Load&& load) const {
    const int k = round * kRoundDepth;
    const std::size_t bytes = k * sizeof(T);
    const bool is_deep = first_ + k + u * kKSlice < depth_;
#pragma unroll
    for (int n = 0; n < kOctets; ++n) load(from_[n] + bytes + u * kKSlice * sizeof(T), is_deep && there_[n], to[n]);
  }

 private:
  static constexpr int kRoundDepth = kSkinnyWarps * kUnroll * kKSlice;

  int first_, depth_;
  const std::byte* from_[kOctets];
  bool there_[kOctets];
};

// Of x, which all blocks read.
template <class T, int kColumns>
__device__ void load_x(const LaneRows<T, kColumns>& x, int round, uint4 (&to)[kUnroll][kColumns]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    x.load(round, u, to[u], [](const std::byte* from, bool there, uint4& piece) {
      piece = there ? *reinterpret_cast<const uint4*>(from) : uint4{};
    });
  }
}

// Result (m, n) of the sum `value`; n is a row of the weight.
__device__ inline void finish(const GemmCall& p, int m, int n, float value) {
  const float sum = p.bias == nullptr ? value : value + p.bias[n];
  store(activate(p.activation, sum), p.out, p.out_dtype, static_cast<std::size_t>(m) * p.out_columns + n);
}

// Results of a tile: the sums of the warps, in their order. acc: of mma(), for each eight rows of x. A block's tiles
// take turns with two `sums`, so that the barrier in between is enough.
template <int kColumns>
using WarpSums = float[kSkinnyWarps][8 * kColumns][kTileRows];
template <int kColumns>
__device__ void sum_warps(const GemmCall& p, int tile, const float (&acc)[kColumns][4], WarpSums<kColumns>& sums) {
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][8 * n + 2 * t + i % 2][g + 8 * (i / 2)] = acc[n][i];
  }
  __syncthreads();
  const RowRun& run = p.runs.with_tile(tile);
  const int row = (tile - run.first_tile) * kTileRows;
  for (int i = threadIdx.x; i < 8 * kColumns * kTileRows; i += kSkinnyThreads) {
    const int m = i / kTileRows, r = i % kTileRows;
    if (m >= p.rows || row + r >= run.rows) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kSkinnyWarps; ++w) sum += sums[w][m][r];
    finish(p, m, run.row_begin + row + r, sum);
  }
}

// What both kernels are: a block's tiles one after the other, rounds of the next tile under way while the last ones of
// a tile are multiplied, the first ones before x is there. A thread holds Weight::kAhead rounds, each in its place:
//   go_to(tile)               what is loaded from now on, at first tile blockIdx.x; behind the last there are zeros
//   load(place, round)
//   multiply(place, b, acc)   acc += the place's round times b, the same round of x
template <class T, int kColumns, class Weight>
__device__ void multiply_tiles(const GemmCall& p, Weight& weight) {
  constexpr int kAhead = Weight::kAhead;
  __shared__ WarpSums<kColumns> sums[2];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int tiles = p.runs.tiles, rounds = skinny_rounds(p.depth);
  const LaneRows<T, kColumns> x(p.x, p.rows, p.depth, warp, lane);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) weight.load(i, i);
  wait_for_previous_kernel();
  let_next_kernel_begin();
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x), turn ^= 1) {
    float acc[kColumns][4] = {};
    for (int first = 0; first < rounds; first += kAhead) {
      int next = first + kAhead;  // round that follows in the first place
      if (next >= rounds) {
        weight.go_to(tile + static_cast<int>(gridDim.x));
        next = 0;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i == 0 || first + i < rounds) {
          uint4 b[kUnroll][kColumns];
          load_x(x, first + i, b);
          weight.multiply(i, b, acc);
        }
        weight.load(i, next + i);
      }
    }
    sum_warps<kColumns>(p, tile, acc, sums[turn]);
  }
}

// As many blocks as find room, unless there are fewer tiles.
inline unsigned skinny_blocks(int tiles) {
  static const int most = [] {
    int device = 0, multiprocessors = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    return known ? kSkinnyBlocks * multiprocessors : 1;
  }();
  return static_cast<unsigned>(tiles < most ? tiles : most);
}

}  // namespace computron::kernels::cuda
