// x · wᵀ for quantised weights whose codes are whole numbers (int8, int4, and fp4 in halves), multiplied as such: for
// processors with dot products of integers (AVX-512 VNNI) but none of bfloat16, where those of 16 bits make 32 products
// in the time of 16 fused multiply-adds of float32, and codes need no conversion.
//
// Elements of x become integers of 16 bits. Those of a chunk, 32 neighbours (16, where groups are no multiples of 32),
// share a step, the power of two of which the largest has 2^14 to 2^15: half a step is at most 2^-15 of it, where
// bfloat16 loses up to 2^-9 of each. A chunk's product with codes is exact in 32 bits, and
//
//   tile[m, n] = Σ_chunks float32(Σ_k integer[m, k] code[n, k]) step[m, chunk] scale[n, group]
//
// is one chain of fused multiply-adds in the order of k, so that a row has the same bits whatever rows are beside it.
// A chunk with an element that is not finite makes its row NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {

// Rows of x as integers, chunk by chunk, in groups of rows that are multiplied together; those that fill the last group
// may be anything.
struct IntegerRows {
  static constexpr int kMostTogether = 8;

  int rows = 0, together = 0, groups = 0, chunk = 0;
  std::vector<std::int16_t> integers;  // [depth / chunk, groups * together, chunk], depth padded as packed
  std::vector<float> steps;            // [depth / chunk, groups * together]; of fp4, in halves, half of them

  // Those of x [rows, depth] for weights of `type`, whose multiplies_integers().
  void take_avx512(const WeightType& type, const float* x, int rows, int depth);
};

// Requires call.expansion and that its type's multiplies_integers(). call.x is not used.
void gemm_integers_avx512(const PanelCall& call, const IntegerRows& x);

}  // namespace computron::kernels
