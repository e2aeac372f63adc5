// x · wᵀ of few rows for weights whose codes lie in runs (quantised_panel.h), with AMX.
//
// Of four bits a group and row share 16 values, so these are made once, and codes find them in tables: a permutation of
// words and a shift make 32 values, where a multiplication and a rounding of each code took nine operations. Of eight
// bits a permutation of bytes and a fused multiply-add replace an extension, a conversion and a multiplication. Values
// come out row by row, so the weight is the first operand of TDPBF16PS and rows of x are the columns of the second: the
// same products, summed in the same order, as in gemm_amx. One core of a Xeon of family 6, model 207, from the second
// cache, for 64 bytes of codes in groups of 32: int8 4.1 ns at one row, 4.8 at four, 5.7 at 16; int4 5.3, 7.4, 8.5.
#pragma once

#include <bit>
#include <cstddef>

#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {

inline constexpr int kMostRunRows = 16;

// Of so many rows of x side by side: the bytes of a pair of k.
constexpr int pair_bytes(int rows) { return 4 * static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows))); }
// Bytes of `pairs` below for a call of so many rows of a depth, padded as packed.
constexpr std::size_t code_runs_scratch(int rows, int depth) {
  return rows == 1 ? 0 : static_cast<std::size_t>(depth) / 2 * pair_bytes(rows) + 64;
}

// The bits of gemm_amx. Requires call.expansion->layout.in_runs and at most kMostRunRows rows of x; pairs:
// code_runs_scratch() bytes.
void gemm_code_runs(const PanelCall& call, std::byte* pairs);

// Expansion::expand for codes that lie in runs: `first` and `count` are multiples of 32.
void expand_code_runs(const Expansion& e, const std::byte* block, int first, int count, std::byte* to);

}  // namespace computron::kernels
