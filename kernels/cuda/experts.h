// A mixture of experts on the device: which rows go to which experts, and their products.
//
// A row's choices are numbered in the order of experts. The pairs (row, choice), sorted by expert and then by row, have
// *positions* 0, 1, ...; what experts compute lies by position.
//
// Everything has the same bits whatever rows are beside a row, and whether experts are multiplied together or one by
// one: the order of sums depends on the depth alone, and there are no atomics.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "computron/kernels/types.h"
#include "kernels/cuda/quantised_tiles.h"
#include "kernels/cuda/runs.h"

struct CUstream_st;

namespace computron::kernels::cuda {

inline constexpr int kMaxExperts = 4096;  // as many as ModelConfig allows

// In device memory.
struct Routes {
  int rows, experts, per_token;
  std::int32_t* begins;   // [experts + 1] expert e has positions [begins[e], begins[e + 1])
  std::int32_t* rows_of;  // [rows × per_token] the row at a position
  std::int32_t* chosen;   // [rows, per_token] experts, ascending; -1: none
  std::int32_t* places;   // [rows, per_token] positions
  float* weights;         // [rows, per_token]

  // `memory` has bytes(rows, rule) and is aligned to four.
  Routes(std::byte* memory, int of_rows, const RoutingRule& rule)
      : rows(of_rows), experts(rule.experts), per_token(rule.per_token) {
    const std::size_t pairs = static_cast<std::size_t>(rows) * per_token;
    begins = reinterpret_cast<std::int32_t*>(memory);
    rows_of = begins + experts + 1;
    chosen = rows_of + pairs;
    places = chosen + pairs;
    weights = reinterpret_cast<float*>(places + pairs);
  }
  static constexpr std::size_t bytes(int rows, const RoutingRule& rule) {
    return (4 * static_cast<std::size_t>(rows) * rule.per_token + rule.experts + 1) * sizeof(std::int32_t);
  }
  COMPUTRON_HOST_DEVICE int positions() const { return rows * per_token; }
};

// Fills all but `routes`' numbers from logits [rows, experts]: the experts with the largest logits, ties to the smaller
// number, weighted by the softmax over the chosen ones or over all. Rows from *real_rows on, where that is not null,
// choose none.
struct RouteCall {
  const float* logits;
  const std::int32_t* real_rows;
  Routes routes;
  RouterSoftmax softmax;
};
void route(CUstream_st* stream, const RouteCall& call);

// out[position, n] = activation(Σ_k x[row, k] weight[n, k] + biases[expert, n]) for the positions of the experts of the
// runs. `x_by_row`: row is the position's; else it is the position itself. Weight rows lie, padded, as gemm() takes
// them.
struct ExpertGemmCall {
  const std::byte* x;
  bool x_by_row;
  DType dtype;  // of x and of the weight's values
  int depth;
  Routes routes;
  const float* biases;  // [experts, out_columns], or null
  Activation activation;
  std::byte* out;
  DType out_dtype;
  int out_columns;
  RowRuns runs;                         // of several weights; tiles have kExpertTileRows rows
  std::int16_t experts[RowRuns::kMax];  // [run]
  QuantisedTiles tiles = {};            // plain weights have none
};
inline constexpr int kExpertTileRows = 64;
// On tensor cores: two-byte elements, `depth` a multiple of eight, x and runs at multiples of 16 bytes.
void tiled_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call);
// Plain weights of any shape and type: a warp a row of the weight.
void plain_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call);

// inout[row, c] += Σ weight × in[position, c] over the row's choices among experts [first, end), in their order.
struct Mix {
  Routes routes;
  int first, end;
  const float* in;  // [positions, columns]
  int columns;
  float* inout;  // [rows, columns]

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    float sum = inout[static_cast<std::size_t>(r) * columns + c];
    for (int i = r * routes.per_token; i < (r + 1) * routes.per_token; ++i) {
      if (routes.chosen[i] < first || routes.chosen[i] >= end) continue;
      sum = fmaf(in[static_cast<std::size_t>(routes.places[i]) * columns + c], routes.weights[i], sum);
    }
    inout[static_cast<std::size_t>(r) * columns + c] = sum;
  }
};

// `body` at the positions of experts [first, end).
template <class Body>
struct AtExperts {
  Routes routes;
  int first, end;
  Body body;

  COMPUTRON_HOST_DEVICE void operator()(int position, int c) const {
    if (position >= routes.begins[first] && position < routes.begins[end]) body(position, c);
  }
};

}  // namespace computron::kernels::cuda
