// What both ways through attention do for a few queries at a time: scores, softmax and weighted values
// (attention_tiles_impl.h, attention_blocks_impl.h). Everything is local to the including file: code compiled for
// AVX-512 must not be linked with anything else.
#pragma once

#include <cstddef>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/exp2.h"

namespace computron::kernels {
namespace {

inline constexpr float kMinusInfinity = -__builtin_inff();

inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger(int a, int b) { return a > b ? a : b; }

// Lanes: V, kCount, kWide; load, store, widen, first, splat, add, sub, mul, div, fma, max, exp, sum_lanes,
// max_lanes, within, transpose, nearest_integer, times_exp2. Columns are positions of a KV tile, counted from its
// begin; queries count from the first of `tiles`.
template <class Lanes>
class AttentionSteps {
 protected:
  using V = typename Lanes::V;
  static constexpr int kLanes = Lanes::kCount;

  explicit AttentionSteps(const AttentionTiles& tiles) : t_(tiles), head_dim_(tiles.part->shape->head_dim) {}

  // Scores of queries [i, i + kQueries), kKvTile apart in `scores`, by kVectors vectors of keys, element d of which lie
  // `stride` × d behind the first: each score is one chain over head_dim. ask(d) is called at each element.
  template <int kQueries, int kVectors, class Key, class Ask>
  void score(int i, const Key* const (&keys)[kVectors], int stride, float* scores, Ask ask) const {
    V sums[kQueries][kVectors];
    for (auto& row : sums) {
      for (V& sum : row) sum = Lanes::splat(0);
    }
    const float* query = t_.query + static_cast<std::size_t>(i) * t_.stride;
    for (int d = 0; d < head_dim_; ++d) {
      ask(d);
      V key[kVectors];
      for (int v = 0; v < kVectors; ++v) key[v] = Lanes::load(keys[v] + d * stride);
      for (int q = 0; q < kQueries; ++q) {
        const V element = Lanes::splat(query[q * t_.stride + d]);
        for (int v = 0; v < kVectors; ++v) sums[q][v] = Lanes::fma(element, key[v], sums[q][v]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) Lanes::store(scores + q * kKvTile + v * kLanes, sums[q][v]);
    }
  }

  // Turns columns `whole` of query i's scores into weights, zero but where it sees columns `own`; carries its softmax
  // on and brings its sums to the new maximum. Lane l always holds columns l, l + kLanes, ...: a column without weight
  // adds an exact zero, so it does not matter how many of those there are.
  void update_softmax(int i, PositionRange own, PositionRange whole, float* scores) const {
    if (t_.part->shape->soft_cap > 0) cap_scores(whole, scores);
    const PositionRange seen{larger(own.begin, whole.begin), smaller(own.end, whole.end)};
    if (seen.empty()) {
      for (int c = whole.begin; c < whole.end; ++c) scores[c] = 0;
      return;
    }
    Softmax& softmax = t_.softmax[i];
    V largest = Lanes::splat(softmax.max);
    for (int c = whole.begin; c < whole.end; c += kLanes) {
      V score = Lanes::load(scores + c);
      if (c < seen.begin || c + kLanes > seen.end) {
        score = Lanes::within(seen.begin - c, seen.end - c, score, Lanes::splat(kMinusInfinity));
        Lanes::store(scores + c, score);
      }
      largest = Lanes::max(score, largest);
    }
    const float max = Lanes::max_lanes(largest);
    V sums = Lanes::splat(0);
    for (int c = whole.begin; c < whole.end; c += kLanes) {
      const V weight = exp2<Lanes>(Lanes::sub(Lanes::load(scores + c), Lanes::splat(max)));
      Lanes::store(scores + c, weight);
      sums = Lanes::add(sums, weight);
    }
    if (softmax.sum != 0) {  // else nothing has been weighted yet
      const float factor = Lanes::first(exp2<Lanes>(Lanes::splat(softmax.max - max)));
      softmax.sum *= factor;
      if (max != softmax.max) scale(t_.sums + static_cast<std::size_t>(i) * t_.stride, factor);
    }
    softmax.sum += Lanes::sum_lanes(sums);
    softmax.max = max;
  }

  // sums[q][:] += Σ weights[q][c] values[c][:] in the order of c, for queries [i, i + kQueries), whose weights are
  // kKvTile apart; column `columns.begin` is the first of `values`, which lie `stride` apart. ask(c, d) is called
  // before the vectors of column c from element d on.
  template <int kQueries, class Value, class Ask>
  void accumulate_pv(int i, PositionRange columns, const float* weights, const Value* values, int stride,
                     Ask ask) const {
    constexpr int kVectors = Lanes::kWide;
    int d = 0;
    for (; d + kVectors * kLanes <= t_.stride; d += kVectors * kLanes) {
      accumulate_columns<kQueries, kVectors>(i, d, columns, weights, values + d, stride, ask);
    }
    for (; d + 2 * kLanes <= t_.stride; d += 2 * kLanes) {  // a head of 32 elements, say
      accumulate_columns<kQueries, 2>(i, d, columns, weights, values + d, stride, ask);
    }
    for (; d < t_.stride; d += kLanes) {
      accumulate_columns<kQueries, 1>(i, d, columns, weights, values + d, stride, ask);
    }
  }

  const AttentionTiles& t_;
  const int head_dim_;

 private:
  // s log2 e for s = cap × tanh(s / cap), and tanh x = 1 - 2 / (1 + e^2x).
  void cap_scores(PositionRange columns, float* scores) const {
    const float cap = t_.part->shape->soft_cap;
    const V one = Lanes::splat(1), two = Lanes::splat(2);
    for (int c = columns.begin; c < columns.end; c += kLanes) {
      const V power = Lanes::exp(Lanes::mul(Lanes::load(scores + c), Lanes::splat(2 / cap)));
      const V tanh = Lanes::sub(one, Lanes::div(two, Lanes::add(one, power)));
      Lanes::store(scores + c, Lanes::mul(tanh, Lanes::splat(cap * kLog2E)));
    }
  }

  void scale(float* sums, float factor) const {
    for (int d = 0; d < t_.stride; d += kLanes) {
      Lanes::store(sums + d, Lanes::mul(Lanes::load(sums + d), Lanes::splat(factor)));
    }
  }

  // Elements [d, d + kVectors × kLanes) of it.
  template <int kQueries, int kVectors, class Value, class Ask>
  void accumulate_columns(int i, int d, PositionRange columns, const float* weights, const Value* values, int stride,
                          Ask ask) const {
    float* out = t_.sums + static_cast<std::size_t>(i) * t_.stride + d;
    V sums[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) sums[q][v] = Lanes::load(out + q * t_.stride + v * kLanes);
    }
    for (int c = columns.begin; c < columns.end; ++c, values += stride) {
      ask(c, d);
      V value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = Lanes::load(values + v * kLanes);
      for (int q = 0; q < kQueries; ++q) {
        const V weight = Lanes::splat(weights[q * kKvTile + c]);
        for (int v = 0; v < kVectors; ++v) sums[q][v] = Lanes::fma(weight, value[v], sums[q][v]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) Lanes::store(out + q * t_.stride + v * kLanes, sums[q][v]);
    }
  }
};

}  // namespace
}  // namespace computron::kernels
