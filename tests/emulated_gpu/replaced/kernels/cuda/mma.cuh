// kernels/cuda/mma.cuh without PTX, after the same pages of the PTX ISA.
#pragma once

#include <cmath>

#include "kernels/cuda/element.h"
#include "tests/emulated_gpu/block.h"
#include "tests/emulated_gpu/stream.h"

namespace computron::kernels::cuda {

namespace twin {

using emulated_gpu::exchange;

// What a lane has of A and B, two neighbours in k a register.
struct Operands {
  float a[4][2], b[2][2];
};

template <class T, std::size_t kRegisters>
void widen_pairs(const unsigned (&pairs)[kRegisters], float (&out)[kRegisters][2]) {
  for (std::size_t i = 0; i < kRegisters; ++i) {
    out[i][0] = widen(T{static_cast<std::uint16_t>(pairs[i])});
    out[i][1] = widen(T{static_cast<std::uint16_t>(pairs[i] >> 16)});
  }
}

// Row `row` of A, of which lane 4 (row % 8) + t has k 2t, 2t + 1 and 2t + 8, 2t + 9.
inline void row_of_a(const emulated_gpu::Slot* lanes, int row, float (&out)[16]) {
  for (int t = 0; t < 4; ++t) {
    const auto& of = *reinterpret_cast<const Operands*>(lanes[row % 8 * 4 + t].bytes);
    for (int i = 0; i < 2; ++i) {
      out[2 * t + i] = of.a[row / 8][i];
      out[2 * t + 8 + i] = of.a[row / 8 + 2][i];
    }
  }
}
// Column `column` of B, likewise.
inline void column_of_b(const emulated_gpu::Slot* lanes, int column, float (&out)[16]) {
  for (int t = 0; t < 4; ++t) {
    const auto& of = *reinterpret_cast<const Operands*>(lanes[column * 4 + t].bytes);
    for (int i = 0; i < 2; ++i) {
      out[2 * t + i] = of.b[0][i];
      out[2 * t + 8 + i] = of.b[1][i];
    }
  }
}

}  // namespace twin

template <class T>
void mma(T, float (&acc)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  twin::Operands mine;
  twin::widen_pairs<T>({a0, a1, a2, a3}, mine.a);
  twin::widen_pairs<T>({b0, b1}, mine.b);
  const emulated_gpu::Slot* lanes = twin::exchange(mine);
  const int g = emulated_gpu::lane() / 4, t = emulated_gpu::lane() % 4;
  float a[2][16], b[2][16];
  for (int i = 0; i < 2; ++i) {
    twin::row_of_a(lanes, g + 8 * i, a[i]);
    twin::column_of_b(lanes, 2 * t + i, b[i]);
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) acc[i] += a[i / 2][k] * b[i % 2][k];
  }
}

template <class T>
unsigned pack(float low, float high) {
  T a, b;
  narrow(low, a);
  narrow(high, b);
  return static_cast<unsigned>(a.bits) | static_cast<unsigned>(b.bits) << 16;
}

template <class T>
unsigned pack_weights(T, float low, float high) {
  return pack<T>(low, high);
}

inline float exp2_or_zero(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }

template <class T>
void load_once(const void* from, bool exists, T& out) {
  if (exists) emulated_gpu::check_aligned(from, sizeof(T));
  out = exists ? *static_cast<const T*>(from) : T{};
}

inline void prefetch(const void* /*from*/) {}

inline unsigned char* dynamic_shared() { return emulated_gpu::dynamic_shared(); }

inline const std::byte* in_registers(const std::byte* p) { return p; }

// Lane l gives the address of row l % 8 of matrix l / 8; lane 4 g + t gets elements 2t, 2t + 1 of row g, or of column
// g.
inline void load_matrices(unsigned (&r)[4], const void* row, bool transposed = false) {
  emulated_gpu::check_aligned(row, 16);
  const emulated_gpu::Slot* rows = twin::exchange(static_cast<const std::uint16_t*>(row));
  const int lane = emulated_gpu::lane(), g = lane / 4, t = lane % 4;
  const auto at = [&](int matrix, int i, int j) {
    return unsigned{rows[8 * matrix + i].as<const std::uint16_t*>()[j]};
  };
  for (int m = 0; m < 4; ++m) {
    r[m] = transposed ? at(m, 2 * t, g) | at(m, 2 * t + 1, g) << 16 : at(m, g, 2 * t) | at(m, g, 2 * t + 1) << 16;
  }
  twin::exchange(0);  // all lanes have read before one goes on
}
inline void load_matrices_transposed(unsigned (&r)[4], const void* row) { load_matrices(r, row, true); }

inline void copy_async(void* to, const void* from, bool exists) {
  emulated_gpu::check_aligned(to, 16);
  emulated_gpu::check_aligned(from, 16);
  emulated_gpu::copy_later(to, exists ? from : nullptr);
}
inline void commit_copies() { emulated_gpu::commit_copies(); }
template <int kOpen>
void wait_for_copies() {
  emulated_gpu::wait_for_copies(kOpen);
}

}  // namespace computron::kernels::cuda
