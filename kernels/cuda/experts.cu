#include "kernels/cuda/element.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/tiled_expert.cuh"

namespace computron::kernels::cuda {
namespace {

// ---- any type

constexpr int kPlainWarps = 8;
constexpr int kPlainRows = 64;  // of the weight
constexpr int kPlainPositions = 8;

template <class T>
__global__ void __launch_bounds__(kPlainWarps* kWarp) plain_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  begin_overlapped();
  const ExpertTile tile(p, kPlainRows, kPlainPositions);
  if (tile.run == nullptr) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int end_row = min(tile.row + kPlainRows, tile.run->rows);
  for (int row = tile.row + warp; row < end_row; row += kPlainWarps) {
    const T* weight = reinterpret_cast<const T*>(tile.run->data) + static_cast<std::size_t>(row) * p.depth;
    for (int position = tile.positions.begin; position < tile.positions.end; ++position) {
      const T* x = reinterpret_cast<const T*>(x_of(p, position, sizeof(T)));
      float sum = 0;
      for (int k = lane; k < p.depth; k += kWarp) sum = fmaf(widen(x[k]), widen(weight[k]), sum);
      sum = warp_sum(sum);
      if (lane == 0) finish(p, tile.positions.expert, position, tile.run->row_begin + row, sum);
    }
  }
}

// ---- launches

using FewShape = Shape<4, 1, 1, kFewPositions / 8, 6, 3>;
using FewCodedShape = Shape<4, 1, 1, kFewPositions / 8, 8, 4>;
using ManyShape = Shape<2, 2, 4, kManyPositions / 16, 3, 2>;

template <class T>
void launch_tiled(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.tile_positions == kFewPositions) {
    launch_shape<PlainRowsOfWeight<T, FewShape>, FewShape>(stream, call);
  } else {
    launch_shape<PlainRowsOfWeight<T, ManyShape>, ManyShape>(stream, call);
  }
}

template <class Codes, class Scales>
void launch_coded(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.tile_positions == kFewPositions) {
    launch_shape<CodedRowsOfWeight<Codes, Scales, FewCodedShape>, FewCodedShape>(stream, call);
  } else {
    launch_shape<CodedRowsOfWeight<Codes, Scales, ManyShape>, ManyShape>(stream, call);
  }
}

template <class T>
void launch_plain(CUstream_st* stream, const ExpertGemmCall& call) {
  launch_overlapped(grid_of(call, kPlainRows, kPlainPositions), kPlainWarps * kWarp, 0, stream, plain_expert_kernel<T>,
                    call);
}

}  // namespace

void tiled_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows == 0 || call.count == 0) return;
  if (call.tiles.quantised()) {
    with_codes_and_scales(call.tiles,
                          [&]<class Codes, class Scales>(Codes, Scales) { launch_coded<Codes, Scales>(stream, call); });
  } else if (call.routes.tile_positions == kMostPositions) {
    warpgroup_expert_gemm(stream, call);
  } else if (call.dtype == DType::kBF16) {
    launch_tiled<BFloat16>(stream, call);
  } else {
    launch_tiled<Float16>(stream, call);
  }
}

void plain_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows == 0 || call.count == 0) return;
  with_element(call.dtype, [&]<class T>(T) { launch_plain<T>(stream, call); });
}

}  // namespace computron::kernels::cuda
