// x · weightᵀ of few rows, which reads the weight once, and of any shape, which is slow. The library's products
// (src/ops/cuda/library_gemm.h) do the rest. The first takes quantised weights as they lie (quantised_tiles.h), and so
// does a product of some more rows; for the others they are expanded.
//
// All sum the products of one result in an order that depends on the depth alone: a row has the same bits whatever
// rows are beside it and however the weight is cut.
#pragma once

#include <cstddef>

#include "computron/kernels/types.h"
#include "kernels/cuda/quantised_tiles.h"
#include "kernels/cuda/runs.h"

struct CUstream_st;

namespace computron::kernels::cuda {

// out[m, n] = activation(Σ_k x[m, k] weight[n, k] + bias[n]) for the rows n of the runs.
struct GemmCall {
  const std::byte* x;  // [rows, depth] of `dtype`
  DType dtype;         // of the weight, too; quantised: of its values
  int rows;
  int depth;
  const float* bias;  // null: none
  Activation activation;
  std::byte* out;  // [rows, out_columns]
  DType out_dtype;
  int out_columns;
  RowRuns runs;
  QuantisedTiles tiles = {};  // a plain weight has none
};

// ---- few rows: tensor cores, the weight straight from memory into registers

inline constexpr int kSkinnyRows = 16;  // of x, at most; they are read in multiples of eight
inline constexpr int kSkinnyWarps = 8;
inline constexpr int kKSlice = 32;       // elements of a row that a warp multiplies in two steps
inline constexpr int kUnroll = 4;        // K slices that it has under way, one behind the other in memory
inline constexpr int kPiece = 8;         // elements that a thread holds of each row: 16 bytes
inline constexpr int kSkinnyBlocks = 2;  // that a multiprocessor has room for

// A block has kTileRows rows of the weight at a time, those of tile blockIdx.x, blockIdx.x + gridDim.x, ...; its warps
// take rounds along the depth. What warp `warp` does in its round
// `round`, K slice `u` of it: lane `lane` holds elements [depth_of(..), + kPiece) of weight rows lane / 4 and
// lane / 4 + 8 and of the rows of x numbered lane / 4, lane / 4 + 8, ... The two products of m16n8k16 take them in an
// order of their own, the same for both operands, which is all that a sum needs.
COMPUTRON_HOST_DEVICE inline int depth_of(int warp, int round, int u, int lane) {
  return ((round * kSkinnyWarps + warp) * kUnroll + u) * kKSlice + (lane % 4) * kPiece;
}
COMPUTRON_HOST_DEVICE inline int skinny_rounds(int depth) {
  return (depth + kSkinnyWarps * kUnroll * kKSlice - 1) / (kSkinnyWarps * kUnroll * kKSlice);
}

// Whether skinny_gemm computes this: two-byte elements, rows of whole pieces, at most kSkinnyRows rows of x. Runs and x
// must lie at multiples of 16 bytes. A quantised weight has the bits of a plain one of its values.
constexpr bool is_skinny(DType dtype, int rows, int depth) {
  return dtype != DType::kF32 && rows <= kSkinnyRows && depth % kPiece == 0;
}
void skinny_gemm(CUstream_st* stream, const GemmCall& call);

// What skinny_gemm() does with a quantised weight.
void skinny_quantised_gemm(CUstream_st* stream, const GemmCall& call);

// ---- quantised weights and more rows: tensor cores, codes through shared memory

inline constexpr int kTiledRows = 64;  // of x, at most

// Whether tiled_gemm computes this: at most kTiledRows rows of whole pieces; codes but those of fp4, scales of two
// bytes. skinny_gemm is for the fewest. Runs and x must lie at multiples of 16 bytes. Its order of sums is its own,
// neither that of skinny_gemm nor that of the library.
bool is_tiled(const QuantisedTiles& tiles, int rows, int depth);
void tiled_gemm(CUstream_st* stream, const GemmCall& call);

// ---- quantised weights as plain ones

// out[n, k] = value (n, k) of bfloat16, [rows, depth], at a multiple of 16 bytes; `rows` is a multiple of kTileRows.
struct ExpandCall {
  const std::byte* weight;
  QuantisedTiles tiles;
  int rows;
  std::byte* out;
};
void expand(CUstream_st* stream, const ExpandCall& call);

// ---- any shape and type, but quantised: a warp a row of the weight

inline constexpr int kPlainRows = 8;  // of x, for which a block reads its rows of the weight once
void plain_gemm(CUstream_st* stream, const GemmCall& call);

}  // namespace computron::kernels::cuda
