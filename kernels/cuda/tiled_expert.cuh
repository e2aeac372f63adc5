// The kernel that multiplies tiles of experts on tensor cores, for each kind of weight and shape of a block
// (expert_tiles.cuh).
#pragma once

#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace computron::kernels::cuda {

// acc += the products of a step, for the first kColumns of a warp's columns, or for half of them where these are all it
// has, and so on.
template <class Shape, int kColumns, class Weight>
__device__ void multiply_step(float (&acc)[Shape::kRowTiles][Shape::kColumns][4], Weight& weight,
                              const uint4* of_weight, const uint4* x, int row_tile, int column_warp, int lane,
                              int columns) {
  if constexpr (kColumns > 1) {
    if (columns <= kColumns / 2) {
      return multiply_step<Shape, kColumns / 2>(acc, weight, of_weight, x, row_tile, column_warp, lane, columns);
    }
  }
  using T = typename Weight::Element;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    unsigned a[Shape::kRowTiles][2][4];
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) weight.values(of_weight, row_tile, i, s, lane, a[i]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const uint4 b = x[(n * Shape::kColumnWarps + column_warp) * kOctetPieces + octet_place_of_lane(s, lane)];
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        mma(T{}, acc[i][n], a[i][0][0], a[i][1][0], a[i][0][1], a[i][1][1], b.x, b.y);
      }
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        mma(T{}, acc[i][n], a[i][0][2], a[i][1][2], a[i][0][3], a[i][1][3], b.z, b.w);
      }
    }
  }
}

// A block Shape::kRows rows of a weight and up to Shape::kPositions positions of its expert.
//
//   steps i + 1, ..., i + kStages - 1   |--copies into shared memory--|
//   tensor cores                        |-- step i --|
template <class Weight, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    tiled_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  using T = typename Weight::Element;
  unsigned char* const memory = dynamic_shared();
  __shared__ const T* x_from[Shape::kPositions];
  begin_overlapped();
  const ExpertTile tile(p, Shape::kRows, Shape::kPositions);
  if (tile.run == nullptr) return;
  auto* const stages = reinterpret_cast<SharedStage<Weight, Shape>*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int column_warp = warp % Shape::kColumnWarps, row_tile = warp / Shape::kColumnWarps * Shape::kRowTiles;
  const int count = tile.count();
  const int columns = ceil_div(ceil_div(count, 8) - column_warp, Shape::kColumnWarps);  // that this warp has
  for (int m = thread; m < count; m += Shape::kThreads) {
    x_from[m] = reinterpret_cast<const T*>(x_of(p, tile.positions.begin + m, sizeof(T)));
  }
  Weight weight(p, tile, row_tile, lane);
  __syncthreads();
  const auto copy = [&](int stage, int first) {
    weight.copy(stages[stage].weight, first);
    const int piece = thread % kRowPieces, k = first + piece * 8;
#pragma unroll
    for (int m = thread / kRowPieces; m < Shape::kPositions; m += Shape::kThreads / kRowPieces) {
      if (m >= count) break;
      const bool there = k < p.depth;
      const T* const from = x_from[m] + (there ? k : 0);
      copy_async(&stages[stage].x[m / 8 * kOctetPieces + octet_place(m % 8, piece)], from, there);
    }
  };

  float acc[Shape::kRowTiles][Shape::kColumns][4] = {};
  const int steps = ceil_div(p.depth, kStep);
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) {
    if (s < steps) copy(s, s * kStep);
    commit_copies();
  }
  for (int step = 0, stage = 0; step < steps; ++step) {
    weight.begin_step();
    if (step + 1 < steps) weight.load((step + 1) * kStep);
    wait_for_copies<Shape::kStages - 2>();
    __syncthreads();  // this step is there, and the one before has been read
    const int ahead = step + Shape::kStages - 1;
    if (ahead < steps) copy(stage == 0 ? Shape::kStages - 1 : stage - 1, ahead * kStep);
    commit_copies();
    if (columns > 0) {
      multiply_step<Shape, Shape::kColumns>(acc, weight, stages[stage].weight, stages[stage].x, row_tile, column_warp,
                                            lane, columns);
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();  // all has been read

  auto& sums = *reinterpret_cast<SharedSums<Shape>*>(memory);
#pragma unroll
  for (int n = 0; n < Shape::kColumns; ++n) {
    if (n >= columns) break;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 4; ++i) {
      const int m = (n * Shape::kColumnWarps + column_warp) * 8 + lane % 4 * 2 + i % 2;
      sums.values[m][(row_tile + i / 4) * kTileRows + lane / 4 + i / 2 % 2 * 8] = acc[i / 4][n][i % 4];
    }
  }
  __syncthreads();
  store_sums<Shape>(p, tile, sums);
}

template <class Weight, class Shape>
void launch_shape(CUstream_st* stream, const ExpertGemmCall& call) {
  constexpr int kBytes = kSharedBytes<Weight, Shape>;
  static_assert(kBytes + static_cast<int>(Shape::kPositions * sizeof(void*)) <= kLeastSharedBytes, "with x_from");
  [[maybe_unused]] static const bool asked =
      ask_for_shared(tiled_expert_kernel<Weight, Shape>, "products in tiles", kBytes);
  launch_overlapped(grid_of(call, Shape::kRows, Shape::kPositions), Shape::kThreads, kBytes, stream,
                    tiled_expert_kernel<Weight, Shape>, call);
}

}  // namespace computron::kernels::cuda
