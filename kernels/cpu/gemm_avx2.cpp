#include "kernels/cpu/gemm_avx2.h"

#include <algorithm>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

constexpr int kKSlice = 128;  // 32 KiB of a 64-row block: stays in the first cache while the rows of x pass

// A kRows × kVectors·8 part of the tile goes on by `depth` products; partial sums wait in the tile between K slices, so
// each stays one chain in the order of k.
template <int kRows, int kVectors>
void multiply(const float* x, std::size_t x_stride, int depth, const float* weight, float* tile,
              std::size_t tile_stride, bool first) {
  F8 sums[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) sums[m][v] = first ? splat(0) : load(tile + m * tile_stride + v * kLanes);
  }
  for (int k = 0; k < depth; ++k) {
    F8 w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = load(weight + k * kRowBlock + v * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const F8 a = splat(x[m * x_stride + k]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = fma(a, w[v], sums[m][v]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) store(tile + m * tile_stride + v * kLanes, sums[m][v]);
  }
}

template <int kRows, int kVectors>
void multiply_block(const float* x, std::size_t x_stride, int depth, const float* weight, float* tile,
                    std::size_t tile_stride, bool first) {
  for (int n = 0; n < kRowBlock; n += kVectors * kLanes) {
    multiply<kRows, kVectors>(x, x_stride, depth, weight + n, tile + n, tile_stride, first);
  }
}

}  // namespace

void gemm_avx2(const float* x, int rows, int depth, const float* weight, int columns, float* tile) {
  for (int n = 0; n < columns; n += kRowBlock) {
    const float* block = weight + static_cast<std::size_t>(n) * depth;
    for (int k = 0; k < depth; k += kKSlice) {
      const int slice = std::min(kKSlice, depth - k);
      const auto run = [&](auto multiply, int m) {
        multiply(x + static_cast<std::size_t>(m) * depth + k, depth, slice, block + k * kRowBlock,
                 tile + static_cast<std::size_t>(m) * columns + n, columns, k == 0);
      };
      int m = 0;
      for (; m + 6 <= rows; m += 6) run(multiply_block<6, 2>, m);
      for (; m + 2 <= rows; m += 2) run(multiply_block<2, 4>, m);
      if (m < rows) run(multiply_block<1, 8>, m);
    }
  }
}

}  // namespace computron::kernels
