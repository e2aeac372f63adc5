// kernels/cuda/warpgroup_mma.cuh without PTX, after the same pages of the PTX ISA.
#pragma once

#include "kernels/cuda/element.h"
#include "kernels/cuda/mma.cuh"

namespace computron::kernels::cuda {

inline constexpr int kWarpgroupColumns = 160;
using WarpgroupSums = float[kWarpgroupColumns / 8][4];

inline int swizzled_piece(int row, int piece) { return row * 8 + (piece ^ row % 8); }

inline void show_stores_to_products() {}
inline void begin_products() {}
inline void commit_products() {}
template <int kOpen>
void wait_for_products() {}
inline void keep_sums(WarpgroupSums& /*acc*/) {}

// In the order of mma()'s sums.
template <class T>
void multiply_async(T, WarpgroupSums& acc, unsigned a0, unsigned a1, unsigned a2, unsigned a3, const void* rows,
                    int window) {
  emulated_gpu::check_aligned(rows, 16);
  twin::Operands mine{};
  twin::widen_pairs<T>({a0, a1, a2, a3}, mine.a);
  const emulated_gpu::Slot* lanes = twin::exchange(mine);
  const int g = emulated_gpu::lane() / 4, t = emulated_gpu::lane() % 4;
  float a[2][16];
  for (int i = 0; i < 2; ++i) twin::row_of_a(lanes, g + 8 * i, a[i]);
  for (int column = 2 * t; column < kWarpgroupColumns; column += column % 2 == 0 ? 1 : 7) {
    float b[16];
    for (int k = 0; k < 16; ++k) {
      const int piece = swizzled_piece(column, 2 * window + k / 8);
      b[k] = widen(static_cast<const T*>(rows)[piece * 8 + k % 8]);
    }
    for (int i = 0; i < 2; ++i) {
      float& sum = acc[column / 8][2 * i + column % 2];
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k];
    }
  }
}

// A GPU with less shared memory is of another architecture than 9.0.
inline bool has_code_of(const void* /*kernel*/) { return emulated_gpu::most_shared() >= std::size_t{227} << 10; }

}  // namespace computron::kernels::cuda
