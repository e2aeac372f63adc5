// x · wᵀ for packed weights (pack.h) with vectors: AVX2 or AVX-512, float32, float16 or bfloat16.
//
// A packed weight is read in steps: of each column one float32 or float16, or two bfloat16 that follow each other in k.
// Rows of x meet a block of 64 columns in groups that fit into registers. One group streams
// through the block, or, of few rows, through several side by side; several groups pass it slice by slice, a slice
// being what a cache holds beside the next. Memory is asked ahead for what comes next. A quantised weight is expanded
// slice by slice (expand.h), whatever the rows, and so is one of 16 bits that is multiplied in float32, for many. Every
// result is one chain in the order of k, of fused multiply-adds (float32; float16 and bfloat16 as float32) or of dot
// products of two (bfloat16: vdpbf16ps, for which denormals are zero), so that neither rows, nor vectors, nor blocking
// changes its bits.
#pragma once

#include <cstddef>

#include "kernels/cpu/expand.h"
#include "kernels/cpu/pack.h"

namespace computron::kernels {

// A matter of time alone. The defaults suit Zen 4, where blocks_at_once was not measured; default_gemm has others for
// Intel's processors.
struct PanelBlocking {
  // Steps of a slice in scratch memory: kShortSlice, for kManyRows rows and more kMostSlice, 128 KiB of a block with
  // four bytes a column. As many rows meet a packed block in equal slices of so many at most, or of slice_bytes where
  // that is more.
  static constexpr int kShortSlice = 64, kMostSlice = 512, kManyRows = 32;

  // Blocks that one row meets at once; two or three rows meet half as many. Memory is read in so many places side by
  // side.
  static constexpr int kMostAtOnce = 4;

  int ahead_bytes = 256;         // of a single group
  int blocks_at_once = 1;        // at most; a power of two
  int slice_bytes = 64 << 10;    // of several groups of fewer rows: in the second cache; whole steps
  int again_bytes = 8 << 10;     // of several groups; 0: memory is asked once
  int codes_ahead_bytes = 3072;  // of codes that gemm_codes and gemm_integers multiply

  bool operator==(const PanelBlocking&) const = default;
};

// Bytes of scratch memory that a call needs, at whole cache lines.
inline constexpr std::size_t kPanelScratch = std::size_t{PanelBlocking::kMostSlice} * kRowBlock * sizeof(float);

// Where a call's results go in the end. The kernels of this file ask for that memory while they multiply, since who
// writes to memory that no cache has waits for it.
struct PanelResult {
  std::byte* to;  // [rows][columns] of dtype, rows `stride` bytes apart; overlaps nothing else of the call
  std::size_t stride;
  DType dtype;
  bool of_sums;       // dtype is float32, and sums + bias are written there; else sums stay in the tile
  const float* bias;  // of_sums: [columns], or null
};

// More rows of x than these are packed for kernels that multiply 16-bit weights as float32 with AVX-512.
inline constexpr int kMostUnpackedRows = 6;

// Rows of x, packed: those of a group side by side, element by element. The first of several calls of one kernel with
// the same x makes them for those after it.
struct PackedRows {
  std::byte* memory;  // rows * depth floats
  bool made = false;
};

// tile[m, n] = Σ_k x[m, k] weight[n, k], n < columns. x: [rows, depth] of gemm_input_dtype, depth padded as packed;
// weight: `columns` rows (a multiple of 64) packed; tile: [rows, columns].
struct PanelCall {
  const std::byte* x;
  int rows, depth;
  const std::byte* weight;
  int columns;
  float* tile;
  std::byte* scratch;  // kPanelScratch
  PanelBlocking blocking;
  const Expansion* expansion = nullptr;  // of a weight that is expanded
  const PanelResult* result = nullptr;   // if any; the kernels of this file alone know it
  PackedRows* packed_rows = nullptr;     // of x, of more than kMostUnpackedRows

  // Bytes of 64 rows of the weight; `plain`: as packed when it is not quantised.
  std::size_t block_bytes(std::size_t plain) const {
    return expansion == nullptr ? plain : expansion->layout.block_bytes();
  }
  // k in [first, first + count) of the block at `block`, packed as values.
  const std::byte* expanded(const std::byte* block, int first, int count) const {
    expansion->expand(*expansion, block, first, count, scratch);
    return scratch;
  }
};

void gemm_f32_avx2(const PanelCall& call);
void gemm_f16_avx2(const PanelCall& call);
void gemm_bf16_as_f32_avx2(const PanelCall& call);
void gemm_f32_avx512(const PanelCall& call);
void gemm_f16_avx512(const PanelCall& call);
void gemm_bf16_as_f32_avx512(const PanelCall& call);
void gemm_bf16_avx512(const PanelCall& call);

}  // namespace computron::kernels
