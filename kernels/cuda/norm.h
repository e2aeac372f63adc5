// LayerNorm and RMSNorm of rows, and RMSNorm of heads within rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "computron/kernels/types.h"

struct CUstream_st;

namespace computron::kernels::cuda {

// out[r, :] = (x[r, :] - mean) / sqrt(variance + epsilon) × weight + bias, without the mean for RMSNorm; weight and
// bias may be null. x: [rows, columns] float32; out may be x.
struct NormCall {
  NormKind kind;
  const float* x;
  int rows;
  int columns;
  const float* weight;
  const float* bias;
  float epsilon;
  std::byte* out;
  DType dtype;
  // Not null: x, which is sum, becomes x + (addend + addend_bias) first. addend: [rows, columns]; its bias may be null.
  const float* addend = nullptr;
  const float* addend_bias = nullptr;
  float* sum = nullptr;
};
void norm(CUstream_st* stream, const NormCall& call);

// Rows of `columns` floats that begin with `heads` heads of head_dim elements: queries, then keys.
struct HeadRows {
  float* qkv;
  int rows;
  int columns;
  int heads;
  int queries;  // of the heads
  int head_dim;
};

// Each head by itself, in place; weight: [of a query | of a key].
struct NormHeadsCall {
  NormKind kind;
  HeadRows of;
  const float* weight;
  float epsilon;
};
void norm_heads(CUstream_st* stream, const NormHeadsCall& call);

// out[r, c] = Σ x² of head heads[c], 0 where that is -1. out: [rows, count].
struct SquareHeadsCall {
  HeadRows of;
  const std::int32_t* heads;
  int count;
  float* out;
};
void square_heads(CUstream_st* stream, const SquareHeadsCall& call);

// Queries and keys by the squares of all heads, [rows, count], of which the first query_count are of queries; in place.
// weight: [heads × head_dim].
struct NormWidthCall {
  NormKind kind;
  HeadRows of;
  const float* squares;
  int count;
  int query_count;
  const float* weight;
  float epsilon;
};
void norm_width(CUstream_st* stream, const NormWidthCall& call);

}  // namespace computron::kernels::cuda
