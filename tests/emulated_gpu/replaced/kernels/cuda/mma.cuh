// kernels/cuda/mma.cuh without PTX, after the same pages of the PTX ISA.
#pragma once

#include "kernels/cuda/element.h"
#include "tests/emulated_gpu/block.h"

namespace computron::kernels::cuda {

namespace twin {

using emulated_gpu::exchange;
using emulated_gpu::kLanes;

struct Operands {
  unsigned a[4], b[2];
};

// Half `i` of a register.
template <class T>
float element(unsigned pair, int i) {
  return widen(T{static_cast<std::uint16_t>(pair >> (16 * i))});
}

// Register of A that holds (row, k), and of B that holds (k, column); lane 4 g + t of row or column g and k 2t, 2t + 1 of
// eight.
template <class T>
float a_at(const emulated_gpu::OfLanes<Operands>& lanes, int row, int k) {
  const int lane = row % 8 * 4 + k % 8 / 2, which = row / 8 + k / 8 * 2;
  return element<T>(lanes[static_cast<std::size_t>(lane)].a[which], k % 2);
}
template <class T>
float b_at(const emulated_gpu::OfLanes<Operands>& lanes, int k, int column) {
  const int lane = column * 4 + k % 8 / 2;
  return element<T>(lanes[static_cast<std::size_t>(lane)].b[k / 8], k % 2);
}

}  // namespace twin

template <class T>
void mma(T, float (&acc)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const auto lanes = twin::exchange(twin::Operands{{a0, a1, a2, a3}, {b0, b1}});
  const int lane = emulated_gpu::lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) acc[i] += twin::a_at<T>(lanes, row, k) * twin::b_at<T>(lanes, k, column);
  }
}

template <class T>
unsigned pack(float low, float high) {
  T a, b;
  narrow(low, a);
  narrow(high, b);
  return static_cast<unsigned>(a.bits) | static_cast<unsigned>(b.bits) << 16;
}

// Needs an address at a multiple of 16.
inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }

// Lane l gives the address of row l % 8 of matrix l / 8; lane 4 g + t gets elements 2t, 2t + 1 of row g, or of column g.
inline void load_matrices(unsigned (&r)[4], const void* row, bool transposed = false) {
  const auto rows = twin::exchange(static_cast<const std::uint16_t*>(row));
  const int lane = emulated_gpu::lane(), g = lane / 4, t = lane % 4;
  const auto at = [&](int matrix, int i, int j) { return unsigned{rows[static_cast<std::size_t>(8 * matrix + i)][j]}; };
  for (int m = 0; m < 4; ++m) {
    r[m] = transposed ? at(m, 2 * t, g) | at(m, 2 * t + 1, g) << 16 : at(m, g, 2 * t) | at(m, g, 2 * t + 1) << 16;
  }
  twin::exchange(0);  // all lanes have read before one goes on
}
inline void load_matrices_transposed(unsigned (&r)[4], const void* row) { load_matrices(r, row, true); }

inline void copy_async(void* to, const void* from, bool exists) { emulated_gpu::copy_later(to, exists ? from : nullptr); }
inline void commit_copies() { emulated_gpu::commit_copies(); }
template <int kOpen>
void wait_for_copies() {
  emulated_gpu::wait_for_copies(kOpen);
}

}  // namespace computron::kernels::cuda
