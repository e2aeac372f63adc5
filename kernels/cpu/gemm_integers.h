// x · wᵀ for quantised weights whose codes are whole numbers (int8, int4, and fp4 in halves), multiplied as such, so
// that they need no conversion to float32: for x86 processors without products of bfloat16, by AVX-512 VNNI, whose dot
// products make 32 products of 16-bit integers in the time of 16 fused multiply-adds, or by AVX2. With AVX-512 alone
// codes become values (kernels/README.md).
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

#include "computron/base/types.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {

// Rows of x as integers, in groups of rows that are multiplied together, and blocks of groups that meet a chunk of the
// weight in turns. What fills the last group is memory whose contents do not matter.
struct IntegerRows {
  // Up to kFewRows rows are one block, in groups of kMostTogether at most, which meet 16 columns at a time. More rows
  // are blocks of kBlockRows at most, in groups of kTileRows, which meet all 64. (AVX2 has groups of its
  // own.)
  static constexpr int kFewRows = 32, kMostTogether = 8, kBlockRows = 48, kTileRows = 6;
  static_assert(kBlockRows % kTileRows == 0);

  int rows = 0, groups = 0, together = 1;
  int block_rows = 0;  // whole groups; the last block may have fewer, too
  int chunk = 0, chunks = 0;
  std::int16_t* integers = nullptr;  // block by block: [chunks, rows of the block, chunk]; at a whole cache line
  float* steps = nullptr;            // block by block: [chunks, rows of the block]

  IntegerRows() = default;
  IntegerRows(int x_rows, const QuantisedLayout& layout)
      : rows(x_rows),
        groups(ceil_div(rows, in_tiles() ? kTileRows : kMostTogether)),
        chunk(layout.group % 32 == 0 ? 32 : 16),
        chunks(layout.depth / chunk) {
    together = in_tiles() ? kTileRows : ceil_div(rows, groups);
    block_rows = in_tiles() ? round_up(ceil_div(rows, ceil_div(rows, kBlockRows)), kTileRows) : kFewRows;
  }

  constexpr bool in_tiles() const { return rows > kFewRows; }
  constexpr int padded_rows() const { return groups * together; }
  // Of the block that begins with row `first`.
  constexpr int rows_of_block(int first) const {
    return padded_rows() - first < block_rows ? padded_rows() - first : block_rows;
  }
  // Where chunk c of row `first` + m lies, counted in chunks of a row; `first` begins a block.
  constexpr std::size_t at(int first, int c, int m) const {
    return static_cast<std::size_t>(first) * chunks + static_cast<std::size_t>(c) * rows_of_block(first) + m;
  }
};

// Write those of x [to.rows, depth]. halves: steps are half of themselves, for codes that count halves.
void make_integers_avx2(const IntegerRows& to, const float* x, int depth, bool halves);
void make_integers_avx512(const IntegerRows& to, const float* x, int depth, bool halves);

// Require call.expansion of a type that multiplies_integers(). call.x is not used.
void gemm_integers_avx2(const PanelCall& call, const IntegerRows& x);
void gemm_integers_avx512(const PanelCall& call, const IntegerRows& x);

}  // namespace computron::kernels
