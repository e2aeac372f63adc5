// x · wᵀ for quantised weights whose codes are whole numbers (int8, int4, and fp4 in halves), multiplied as such: for
// processors with dot products of integers (AVX-512 VNNI) but none of bfloat16, where those of 16 bits make 32 products
// in the time of 16 fused multiply-adds of float32, and codes need no conversion.
//
// Elements of x become integers of 16 bits. Those of a chunk, 32 neighbours (16, where groups are no multiples of 32),
// share a step, the power of two of which the largest has 2^14 to 2^15 (32767 at most): no element changes by more than
// 2^-15 of the largest, where bfloat16 changes each by up to 2^-9 of itself. A chunk's product with codes is exact in
// 32 bits, and
//
//   tile[m, n] = Σ_chunks float32(float32(Σ_k integer[m, k] code[n, k]) step[m, chunk]) scale[n, group]
//
// is one chain of fused multiply-adds in the order of k, so that a row has the same bits whatever rows are beside it.
// An element that is not finite makes its row NaN; elements from 2^100 on may make it infinite before the scale makes
// it small again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {

// Rows of x as integers, chunk by chunk, in groups of rows that are multiplied together. What fills the last group is
// memory whose contents do not matter.
struct IntegerRows {
  static constexpr int kMostTogether = 8;

  int rows, together, groups;
  int chunk, chunks;
  std::int16_t* integers;  // [chunks, groups * together, chunk]
  float* steps;            // [chunks, groups * together]

  constexpr std::size_t padded_rows() const { return static_cast<std::size_t>(groups) * together; }
};

// Writes those of x [to.rows, depth]. halves: steps are half of themselves, for codes that count halves.
void make_integers_avx512(const IntegerRows& to, const float* x, int depth, bool halves);

// Requires call.expansion of a type that multiplies_integers(). call.x is not used.
void gemm_integers_avx512(const PanelCall& call, const IntegerRows& x);

}  // namespace computron::kernels
