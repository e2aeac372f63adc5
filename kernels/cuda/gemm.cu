#include "kernels/cuda/element.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/skinny.cuh"

namespace computron::kernels::cuda {
namespace {

// What a lane has of a plain weight.
template <class T>
class PlainLane {
 public:
  static constexpr int kAhead = 2;

  __device__ PlainLane(const GemmCall& p, int warp, int lane)
      : p_(p), warp_(warp), lane_(lane), rows_(rows_of(static_cast<int>(blockIdx.x))) {}

  __device__ void go_to(int tile) { rows_ = rows_of(tile); }
  __device__ void load(int place, int round) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      rows_.load(round, u, held_[place][u],
                 [](const std::byte* from, bool there, uint4& to) { load_once(from, there, to); });
    }
  }
  template <int kColumns>
  __device__ void multiply(int place, const uint4 (&b)[kUnroll][kColumns], float (&acc)[kColumns][4]) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint4(&a)[2] = held_[place][u];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        mma(T{}, acc[n], a[0].x, a[1].x, a[0].y, a[1].y, b[u][n].x, b[u][n].y);
        mma(T{}, acc[n], a[0].z, a[1].z, a[0].w, a[1].w, b[u][n].z, b[u][n].w);
      }
    }
  }

 private:
  __device__ LaneRows<T, 2> rows_of(int tile) const {
    const RowRun& run = p_.runs.with_tile(tile);
    const auto row = static_cast<std::size_t>(tile - run.first_tile) * kTileRows;
    return {run.data + row * p_.depth * sizeof(T), tile < p_.runs.tiles ? kTileRows : 0, p_.depth, warp_, lane_};
  }

  const GemmCall& p_;
  int warp_, lane_;
  LaneRows<T, 2> rows_;
  uint4 held_[kAhead][kUnroll][2];
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocks) skinny_kernel(const __grid_constant__ GemmCall p) {
  PlainLane<T> weight(p, threadIdx.x / kWarp, threadIdx.x % kWarp);
  multiply_tiles<T, kColumns>(p, weight);
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
  const unsigned blocks = skinny_blocks(call.runs.tiles);
  if (call.rows <= 8) {
    launch_overlapped(blocks, kSkinnyThreads, 0, stream, skinny_kernel<T, 1>, call);
  } else {
    launch_overlapped(blocks, kSkinnyThreads, 0, stream, skinny_kernel<T, 2>, call);
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
