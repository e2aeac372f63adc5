// A mixture of experts on the device: which rows go to which experts, and their products.
//
// A row's choices are numbered in the order of experts. The pairs (row, choice), sorted by expert and then by row, have
// *positions* 0, 1, ...; what experts compute lies by position.
//
// Everything has the same bits whatever rows are beside a row, and whether experts are multiplied together or one by
// one: the order of sums depends on the depth alone, and atomics do no more than count and set bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "computron/kernels/types.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/quantised_tiles.h"

struct CUstream_st;

namespace computron::kernels::cuda {

inline constexpr int kMaxExperts = 4096;  // as many as ModelConfig allows

// Positions [begin, end) of an expert, which are multiplied together.
struct PositionTile {
  std::int32_t expert;  // -1: there is none
  std::int32_t begin, end;
};
// Positions of a tile, at most. Few, where experts have few on the average: their weights are what takes time; most,
// where they have many and warpgroups multiply them.
inline constexpr int kFewPositions = 16;
inline constexpr int kManyPositions = 128;
inline constexpr int kMostPositions = 160;
inline constexpr int kFewOnAverage = 8;
inline constexpr int kManyOnAverage = 64;  // warpgroups are slower at 32, faster at 128

// In device memory.
struct Routes {
  static constexpr int kPartRows = 16;  // at most 32

  int rows = 0, experts = 1, per_token = 1;
  int tile_positions = 0;               // at most
  std::int32_t* begins = nullptr;       // [experts + 1] expert e has positions [begins[e], begins[e + 1])
  std::int32_t* first_tiles = nullptr;  // [experts + 1] ... and tiles [first_tiles[e], first_tiles[e + 1])
  PositionTile* tiles = nullptr;        // [most_tiles(experts)] by position; then such that there are none
  std::int32_t* rows_of = nullptr;      // [rows × per_token] the row at a position
  std::int32_t* chosen = nullptr;       // [rows, per_token] experts, ascending; -1: none
  std::int32_t* places = nullptr;       // [rows, per_token] positions
  float* weights = nullptr;             // [rows, per_token]
  // [parts, experts] bit i: the part's row i has chosen the expert. A part is kPartRows rows. Nobody's but route()'s.
  std::uint32_t* masks = nullptr;

  // `memory` has bytes(rows, rule) and is aligned to four. All who are given it say the same of `in_warpgroups`:
  // multiplies_in_warpgroups().
  Routes(std::byte* memory, int of_rows, const RoutingRule& rule, bool in_warpgroups)
      : rows(of_rows),
        experts(rule.experts),
        per_token(rule.per_token),
        tile_positions(positions() <= kFewOnAverage * experts                      ? kFewPositions
                       : positions() <= kManyOnAverage * experts || !in_warpgroups ? kManyPositions
                                                                                   : kMostPositions) {
    const std::size_t pairs = static_cast<std::size_t>(rows) * per_token;
    begins = reinterpret_cast<std::int32_t*>(memory);
    first_tiles = begins + experts + 1;
    tiles = reinterpret_cast<PositionTile*>(first_tiles + experts + 1);
    rows_of = reinterpret_cast<std::int32_t*>(tiles + most_tiles(experts));
    chosen = rows_of + pairs;
    places = chosen + pairs;
    weights = reinterpret_cast<float*>(places + pairs);
    masks = reinterpret_cast<std::uint32_t*>(weights + pairs);
  }
  // No routes: every row is at its own position, of the only expert.
  static Routes all_to_one(int of_rows, int of_tile) {
    Routes routes;
    routes.rows = of_rows;
    routes.tile_positions = of_tile;
    return routes;
  }
  COMPUTRON_HOST_DEVICE bool all_is_one() const { return tiles == nullptr; }
  // Of more rows no less.
  static constexpr std::size_t bytes(int rows, const RoutingRule& rule) {
    const std::size_t pairs = static_cast<std::size_t>(rows) * rule.per_token;
    const int tiles = most_tiles(rule.experts, rows, rule.per_token, kFewPositions);
    return 2 * (std::size_t{1} + rule.experts) * sizeof(std::int32_t) + tiles * sizeof(PositionTile) +
           pairs * (3 * sizeof(std::int32_t) + sizeof(float)) +
           static_cast<std::size_t>(parts(rows)) * rule.experts * sizeof(std::uint32_t);
  }
  COMPUTRON_HOST_DEVICE static constexpr int parts(int rows) { return (rows + kPartRows - 1) / kPartRows; }

  COMPUTRON_HOST_DEVICE int positions() const { return rows * per_token; }
  // As many tiles as `some` of the experts may have.
  COMPUTRON_HOST_DEVICE int most_tiles(int some) const { return most_tiles(some, rows, per_token, tile_positions); }

 private:
  Routes() = default;

  // Σ ceil(n / size) <= Σ (n + size - 1) / size over the experts that have n > 0 positions.
  COMPUTRON_HOST_DEVICE static constexpr int most_tiles(int some, int rows, int per_token, int size) {
    const int pairs = rows * per_token, chosen = some < pairs ? some : pairs;
    const int of_pairs = (pairs + chosen * (size - 1)) / size, of_rows = some * ((rows + size - 1) / size);
    return of_pairs < of_rows ? of_pairs : of_rows;
  }
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

// Rows [row_begin, row_begin + rows) of an expert's weight, one behind the other at `data`.
struct ExpertRun {
  const std::byte* data;
  int row_begin;
  int rows;
  int expert;
};

// out[position, n] = activation(Σ_k x[row, k] weight[n, k] + biases[expert, n]) for the positions of the experts of the
// runs. `x_by_row`: row is the position's; else it is the position itself. Weight rows lie as gemm() takes them.
// Passed to kernels by value: in more than 4 KiB, which wants a toolkit of 12.1 or later.
struct ExpertGemmCall {
  static constexpr int kMaxRuns = 256;

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
  QuantisedTiles tiles = {};  // plain weights have none
  int count = 0;              // of runs; they are in the order of experts
  ExpertRun runs[kMaxRuns] = {};

  // The first run of an expert, or of the first one behind it. Nearly always every expert has one run.
  COMPUTRON_HOST_DEVICE int first_run(int expert) const {
    const int guess = expert - runs[0].expert;
    int run = guess < 0 ? 0 : guess < count ? guess : count - 1;
    while (run < count && runs[run].expert < expert) ++run;
    while (run > 0 && runs[run - 1].expert >= expert) --run;
    return run;
  }
};
// On tensor cores: two-byte elements, `depth` a multiple of eight, x and runs at multiples of 16 bytes.
void tiled_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call);
// What tiled_expert_gemm() does with plain weights where tiles have kMostPositions.
void warpgroup_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call);
// Whether this device has code for that. It has the bits of the other tiles.
bool multiplies_in_warpgroups();
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

// Mix of columns 4 c, ..., 4 c + 3. Columns are a multiple of four, arrays aligned to 16 bytes. As many terms are read
// before the first is added as keep memory busy.
struct MixFours {
  static constexpr int kAtOnce = 8;

  Mix each;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    const Routes& routes = each.routes;
    Four<float>& out = four_at(each.inout, r, each.columns, 4 * c);
    Four<float> sum = out;
    const int end = (r + 1) * routes.per_token;
    for (int first = r * routes.per_token; first < end; first += kAtOnce) {
      bool wanted[kAtOnce];
      int places[kAtOnce];
      float weights[kAtOnce];
      Four<float> terms[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) {
        const int pair = first + i, expert = pair < end ? routes.chosen[pair] : -1;
        wanted[i] = expert >= each.first && expert < each.end;
        places[i] = pair < end ? routes.places[pair] : 0;
        weights[i] = pair < end ? routes.weights[pair] : 0;
      }
      for (int i = 0; i < kAtOnce; ++i) {
        if (wanted[i]) terms[i] = four_at(each.in, places[i], each.columns, 4 * c);
      }
      for (int i = 0; i < kAtOnce; ++i) {
        for (int k = 0; k < 4 && wanted[i]; ++k) sum.values[k] = fmaf(terms[i].values[k], weights[i], sum.values[k]);
      }
    }
    out = sum;
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
