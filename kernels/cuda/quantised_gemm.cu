#include "kernels/cuda/element.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/lane_codes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/skinny.cuh"

namespace computron::kernels::cuda {
namespace {

// As skinny_kernel (gemm.cu), and in its order of sums. The codes of several rounds are under way, since each has few
// bytes.
template <class Codes, class Scales, int kColumns>
__global__ void __launch_bounds__(kSkinnyThreads, 2) quantised_kernel(const __grid_constant__ GemmCall p) {
  const RowRun& run = p.runs.with_tile(static_cast<int>(blockIdx.x));
  const int tile = static_cast<int>(blockIdx.x) - run.first_tile;
  const std::byte* tile_data = run.data + tile * p.tiles.tile_bytes();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int rounds = skinny_rounds(p.depth);

  float acc[kColumns][4] = {};
  constexpr int kAhead = Codes::kBits == 8 ? 2 : 3;
  LaneCodes<Codes, Scales, kUnroll * Codes::kBits / 8> ahead[kAhead];
  const auto load = [&](int round, auto& to) {
    if (round < rounds) to.load(p.tiles, tile_data, depth_of(warp, round, 0, 0), lane);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, ahead[i]);
  wait_for_previous_kernel();
  let_next_kernel_begin();
  for (int first = 0; first < rounds; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int round = first + i;
      if (round >= rounds) break;
      const auto codes = ahead[i];
      load(round + kAhead, ahead[i]);
      uint4 b[kUnroll][kColumns];
      load_x<BFloat16>(p, warp, round, lane, b);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        unsigned a[2][4];
        codes.values(u, 0, a[0]);
        codes.values(u, 1, a[1]);
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          mma(BFloat16{}, acc[n], a[0][0], a[1][0], a[0][1], a[1][1], b[u][n].x, b[u][n].y);
          mma(BFloat16{}, acc[n], a[0][2], a[1][2], a[0][3], a[1][3], b[u][n].z, b[u][n].w);
        }
      }
    }
  }
  sum_warps(p, run, tile * kTileRows, acc);
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
  codes.load(p.tiles, p.weight + tile * p.tiles.tile_bytes(), first, lane);
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
  const auto tiles = static_cast<unsigned>(call.runs.tiles);
  if (call.rows <= 8) {
    launch_overlapped(tiles, kSkinnyThreads, 0, stream, quantised_kernel<Codes, Scales, 1>, call);
  } else {
    launch_overlapped(tiles, kSkinnyThreads, 0, stream, quantised_kernel<Codes, Scales, 2>, call);
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
