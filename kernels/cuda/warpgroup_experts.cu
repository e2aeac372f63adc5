// Products of experts that have many rows, by warpgroups (warpgroup_mma.cuh).
#include "kernels/cuda/expert_tiles.cuh"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/warpgroup_mma.cuh"

namespace computron::kernels::cuda {
namespace {

// A block's rows of x, a step of the depth at a time. A thread copies pieces of 16 bytes into places of its own, and
// from there, words in the order in which PlainRowsOfWeight::values() and its like give weights, to where products read
// them: a window of 16 elements has the first halves of a slice's four pieces, the next one has the second halves.
template <class T, class Shape>
class RowsOfX {
  static constexpr int kRowsAtOnce = Shape::kThreads / kRowPieces;
  static constexpr int kPieces = ceil_div(Shape::kPositions, kRowsAtOnce);

 public:
  static constexpr int kCopied = kPieces * Shape::kThreads;  // pieces of a step

  __device__ RowsOfX(const ExpertGemmCall& p, const ExpertTile& tile) : count_(tile.count()) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int m = first_row() + i * kRowsAtOnce, position = tile.positions.begin + m;
      rows_[i] = m >= tile.count() ? -1 : p.x_by_row ? p.routes.rows_of[position] : position;
    }
  }
  __device__ void copy(const ExpertGemmCall& p, uint4* to, int first) const {
    const int k = first + piece() * 8;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (i * kRowsAtOnce >= count_) break;
      const bool there = k < p.depth && rows_[i] >= 0;
      const T* from = reinterpret_cast<const T*>(p.x) + (there ? static_cast<std::size_t>(rows_[i]) * p.depth + k : 0);
      copy_async(to + i * Shape::kThreads + threadIdx.x, from, there);
    }
  }
  __device__ void order(const uint4* from, uint4* to) const {
    auto* const words = reinterpret_cast<unsigned*>(to);
    const int slice = piece() / 4, word = piece() % 4;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (i * kRowsAtOnce >= count_) break;
      const int m = first_row() + i * kRowsAtOnce;
      const uint4 x = from[i * Shape::kThreads + threadIdx.x];
      words[swizzled_piece(m, slice * 4 + 0) * 4 + word] = x.x;
      words[swizzled_piece(m, slice * 4 + 1) * 4 + word] = x.y;
      words[swizzled_piece(m, slice * 4 + 2) * 4 + word] = x.z;
      words[swizzled_piece(m, slice * 4 + 3) * 4 + word] = x.w;
    }
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / kRowPieces; }
  __device__ static int piece() { return static_cast<int>(threadIdx.x) % kRowPieces; }

  int count_;
  int rows_[kPieces];  // -1: there is none
};

template <class Weight, class Shape>
struct WarpgroupMemory {
  struct Stage {
    uint4 weight[Weight::kPieces];
    uint4 x[RowsOfX<typename Weight::Element, Shape>::kCopied];
  };
  uint4 x[3][Shape::kPositions * kRowPieces];  // in order: of the step before, this one and the next
  Stage stages[Shape::kStages];
};

// A block Shape::kRows rows of a weight, 64 a warpgroup, and up to Shape::kPositions positions of its expert.
//
//   steps i + 2, ..., i + kStages   |-- copies into shared memory --|
//   x of step i + 1                 |-- is put in order --|
//   tensor cores                    |-- step i --|
template <class Weight, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    warpgroup_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  using T = typename Weight::Element;
  using Memory = WarpgroupMemory<Weight, Shape>;
  extern __shared__ __align__(1024) unsigned char memory[];
  begin_overlapped();
  const ExpertTile tile(p, Shape::kRows, Shape::kPositions);
  if (tile.run == nullptr) return;
  auto& shared = *reinterpret_cast<Memory*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row_tile = warp * Shape::kRowTiles;
  Weight weight(p, tile, row_tile, lane);
  RowsOfX<T, Shape> x(p, tile);

  float acc[Shape::kRowTiles][Shape::kColumns][4] = {};
  const int steps = ceil_div(p.depth, kStep);
  const auto copy = [&](int stage, int step) {
    if (step < steps) {
      weight.copy(shared.stages[stage].weight, step * kStep);
      x.copy(p, shared.stages[stage].x, step * kStep);
    }
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) copy(s, s);
  wait_for_copies<Shape::kStages - 2>();
  x.order(shared.stages[0].x, shared.x[0]);
  for (int step = 0, stage = 0, ordered = 0; step < steps; ++step) {
    weight.begin_step();
    if (step + 1 < steps) weight.load((step + 1) * kStep);
    show_stores_to_products();
    __syncthreads();  // this step is there, x in order, and the step before has been read
    copy(stage == 0 ? Shape::kStages - 1 : stage - 1, step + Shape::kStages - 1);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      unsigned a[Shape::kRowTiles][2][4];
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) weight.values(shared.stages[stage].weight, row_tile, i, s, lane, a[i]);
      begin_products();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < Shape::kRowTiles; ++i) {
          multiply_async(T{}, acc[i], a[i][0][2 * half], a[i][1][2 * half], a[i][0][2 * half + 1],
                         a[i][1][2 * half + 1], shared.x[ordered], 2 * s + half);
        }
      }
      commit_products();
      wait_for_products<1>();
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    ordered = ordered == 2 ? 0 : ordered + 1;
    wait_for_copies<Shape::kStages - 2>();
    if (step + 1 < steps) x.order(shared.stages[stage].x, shared.x[ordered]);
  }
  wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < Shape::kRowTiles; ++i) keep_sums(acc[i]);
  wait_for_copies<0>();
  __syncthreads();  // all has been read

  auto& sums = *reinterpret_cast<SharedSums<Shape>*>(memory);
#pragma unroll
  for (int n = 0; n < Shape::kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 4; ++i) {
      const int row = (row_tile + i / 4) * kTileRows + lane / 4 + i / 2 % 2 * 8;
      sums.values[n * 8 + lane % 4 * 2 + i % 2][row] = acc[i / 4][n][i % 4];
    }
  }
  __syncthreads();
  store_sums<Shape>(p, tile, sums);
}

// 256 rows, 32 a warp.
using WarpgroupShape = Shape<8, 1, 2, kMostPositions / 8, 3, 1>;

template <class T>
constexpr auto* kKernel = warpgroup_expert_kernel<PlainRowsOfWeight<T, WarpgroupShape>, WarpgroupShape>;

template <class T>
void launch(CUstream_st* stream, const ExpertGemmCall& call) {
  using Shape = WarpgroupShape;
  constexpr int kBytes = static_cast<int>(
      std::max(sizeof(WarpgroupMemory<PlainRowsOfWeight<T, Shape>, Shape>), sizeof(SharedSums<Shape>)));
  static_assert(kBytes <= 227 << 10, "of architecture 9.0");
  [[maybe_unused]] static const bool asked = ask_for_shared(kKernel<T>, "products in warpgroups", kBytes);
  launch_overlapped(grid_of(call, Shape::kRows, Shape::kPositions), Shape::kThreads, kBytes, stream, kKernel<T>, call);
}

}  // namespace

void warpgroup_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.dtype == DType::kBF16) {
    launch<BFloat16>(stream, call);
  } else {
    launch<Float16>(stream, call);
  }
}

bool multiplies_in_warpgroups() {
  static const bool does = has_code_of(reinterpret_cast<const void*>(kKernel<BFloat16>));
  return does;
}

}  // namespace computron::kernels::cuda
