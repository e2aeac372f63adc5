#include "kernels/cuda/element.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/lane_codes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/skinny.cuh"

namespace computron::kernels::cuda {
namespace {

// What a lane has of a quantised weight.
template <class Codes, class Scales>
class QuantisedLane {
  static constexpr int kUnits = kUnroll * Codes::kBits / 8;  // of a round
  using Lane = LaneCodes<Codes, Scales, kUnits>;
  using Tile = typename Lane::Tile;

 public:
  static constexpr int kAhead = 2;

  __device__ QuantisedLane(const GemmCall& p, int warp, int lane)
      : p_(p), warp_(warp), lane_(lane), tile_(p.tiles, p.runs.runs[0].data, lane) {
    go_to(static_cast<int>(blockIdx.x));
  }

  __device__ void go_to(int tile) {
    const RowRun& run = p_.runs.with_tile(tile);
    const auto in_run = static_cast<std::size_t>(tile - run.first_tile);
    tile_.go_to(run.data + in_run * p_.tiles.tile_bytes(), tile < p_.runs.tiles ? p_.depth : 0, lane_);
  }
  __device__ void load(int place, int round) { held_[place].load(tile_, depth_of(warp_, round, 0, 0)); }
  template <int kColumns>
  __device__ void multiply(int place, const uint4 (&b)[kUnroll][kColumns], float (&acc)[kColumns][4]) const {
    const Lane& held = held_[place];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      unsigned a[2][4];
      held.values(u, 0, a[0]);
      held.values(u, 1, a[1]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        mma(BFloat16{}, acc[n], a[0][0], a[1][0], a[0][1], a[1][1], b[u][n].x, b[u][n].y);
        mma(BFloat16{}, acc[n], a[0][2], a[1][2], a[0][3], a[1][3], b[u][n].z, b[u][n].w);
      }
    }
  }

 private:
  const GemmCall& p_;
  int warp_, lane_;
  Tile tile_;
  Lane held_[kAhead];
};

template <class Codes, class Scales, int kColumns>
__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocks) quantised_kernel(const __grid_constant__ GemmCall p) {
  QuantisedLane<Codes, Scales> weight(p, threadIdx.x / kWarp, threadIdx.x % kWarp);
  multiply_tiles<BFloat16, kColumns>(p, weight);
}

// Elements [k, k + kPieceK) of a row of `depth`, as far as it has them.
__device__ void store_piece(std::byte* row, int depth, int k, const unsigned (&pairs)[4]) {
  auto* out = reinterpret_cast<std::uint16_t*>(row) + k;
  if (depth % QuantisedTiles::kPieceK == 0) {
    if (k < depth) *reinterpret_cast<uint4*>(out) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < QuantisedTiles::kPieceK; ++i) {
    if (k + i < depth) out[i] = static_cast<std::uint16_t>(pairs[i / 2] >> 16 * (i % 2));
  }
}

// A warp a unit.
template <class Codes, class Scales>
__global__ void __launch_bounds__(kSkinnyThreads) expand_kernel(const __grid_constant__ ExpandCall p) {
  using Lane = LaneCodes<Codes, Scales, 1>;
  const int units = p.tiles.units(), lane = threadIdx.x % kWarp;
  const std::size_t warp = std::size_t{blockIdx.x} * kSkinnyWarps + threadIdx.x / kWarp;
  const int tile = static_cast<int>(warp / units);
  if (tile >= p.rows / kTileRows) return;
  const int first = static_cast<int>(warp % units) * p.tiles.unit_depth();
  Lane codes;
  codes.load(typename Lane::Tile(p.tiles, p.weight + tile * p.tiles.tile_bytes(), lane), first);
#pragma unroll
  for (int s = 0; s < Lane::kSlices; ++s) {
    const int k = first + s * QuantisedTiles::kSlice + lane % 4 * QuantisedTiles::kPieceK;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::size_t row = std::size_t{kTileRows} * tile + lane / 4 + 8 * half;
      unsigned pairs[4];
      codes.values(s, half, pairs);
      store_piece(p.out + row * p.tiles.depth * sizeof(BFloat16), p.tiles.depth, k, pairs);
    }
  }
}

template <class Codes, class Scales>
void launch_quantised(CUstream_st* stream, const GemmCall& call) {
  const unsigned blocks = skinny_blocks(call.runs.tiles);
  if (call.rows <= 8) {
    launch_overlapped(blocks, kSkinnyThreads, 0, stream, quantised_kernel<Codes, Scales, 1>, call);
  } else {
    launch_overlapped(blocks, kSkinnyThreads, 0, stream, quantised_kernel<Codes, Scales, 2>, call);
  }
}

template <class Codes, class Scales>
void launch_expand(CUstream_st* stream, const ExpandCall& call) {
  const std::size_t warps = static_cast<std::size_t>(call.rows / kTileRows) * call.tiles.units();
  const auto blocks = static_cast<unsigned>(ceil_div(warps, std::size_t{kSkinnyWarps}));
  expand_kernel<Codes, Scales><<<blocks, kSkinnyThreads, 0, stream>>>(call);
}

}  // namespace

void skinny_quantised_gemm(CUstream_st* stream, const GemmCall& call) {
  with_codes_and_scales(
      call.tiles, [&]<class Codes, class Scales>(Codes, Scales) { launch_quantised<Codes, Scales>(stream, call); });
}

void expand(CUstream_st* stream, const ExpandCall& call) {
  if (call.rows == 0 || call.tiles.depth == 0) return;
  with_codes_and_scales(call.tiles,
                        [&]<class Codes, class Scales>(Codes, Scales) { launch_expand<Codes, Scales>(stream, call); });
}

}  // namespace computron::kernels::cuda
