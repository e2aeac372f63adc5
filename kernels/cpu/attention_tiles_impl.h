// The template behind attend_avx2 and attend_avx512 (attention_tiles.h). Everything is local to the including file:
// code compiled for AVX-512 must not be linked with anything else.
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
// max_lanes, within, transpose, nearest_integer, times_exp2. T: what the cache holds.
template <class Lanes, class T>
class TiledAttention {
  using V = typename Lanes::V;
  static constexpr int kLanes = Lanes::kCount;
  static constexpr int kDirectQueries = 4;  // use a KV tile's keys too seldom for staging to pay
  static constexpr std::size_t kLine = 64;

  enum class Half : unsigned char { kKeys, kValues };
  struct Ahead {
    Half half = Half::kKeys;
    int kv_head = 0;
    int block = 0, end = 0;  // of the sequence, still to be asked for
    const char *at = nullptr, *stop = nullptr;
  };

 public:
  explicit TiledAttention(const AttentionTiles& tiles)
      : t_(tiles),
        cache_(*tiles.part->cache),
        head_dim_(tiles.part->shape->head_dim),
        direct_(tiles.own_keys == nullptr && tiles.queries <= kDirectQueries && cache_.block_tokens % kLanes == 0 &&
                head_dim_ % kMaxLanes == 0) {}

  void run() {
    const PositionRange first = t_.seen[0], last = t_.seen[t_.queries - 1];
    for (int begin = first.begin / kKvTile * kKvTile; begin < last.end; begin += kKvTile) {
      const PositionRange tile{larger(begin, first.begin), smaller(begin + kKvTile, last.end)};
      if (!direct_) stage(begin, tile);
      for (int i = 0, end; i < t_.queries; i = end) {
        end = i + visit_some(i, begin, tile);
        if (t_.own_keys != nullptr) ask_beyond(i, end, tile);
      }
    }
  }

 private:
  // ---- staging: the KV tile's keys and values as float32

  // The part's place in the slot of the `block`-th block: keys [head_dim][block_tokens], then, kv_heads times that
  // further on, values [block_tokens][head_dim].
  const T* keys_of(int block) const { return head_in(block, t_.part->kv_head); }
  const T* values_of(int block) const { return keys_of(block) + half_elements(); }
  const T* head_in(int block, int kv_head) const {
    const std::byte* slot = cache_.slot(t_.part->sequence->blocks[static_cast<std::size_t>(block)], t_.part->layer);
    return reinterpret_cast<const T*>(slot) + kv_head * head_elements();
  }
  std::size_t head_elements() const { return static_cast<std::size_t>(cache_.block_tokens) * head_dim_; }
  std::size_t half_elements() const { return cache_.kv_heads * head_elements(); }

  void stage(int grid, PositionRange tile) {
    if (t_.own_keys != nullptr) return stage_own(grid, tile);
    for_each_run(tile, [&](int block, int in_block, int position, int count) {
      stage_keys(keys_of(block), in_block, count, t_.keys + position - grid);
    });
    for_each_run(tile, [&](int block, int in_block, int position, int count) {
      stage_values(values_of(block) + in_block * head_dim_, count, t_.values + (position - grid) * t_.stride);
    });
  }

  // From the rows of the pass, where a position is a row. Whole vectors of a tile, from positions before it on.
  void stage_own(int grid, PositionRange tile) const {
    const std::size_t columns = static_cast<std::size_t>(t_.own_columns);
    const std::size_t to_values = static_cast<std::size_t>(cache_.kv_heads) * head_dim_;
    for (int position = tile.begin - (tile.begin - grid) % kLanes; position < tile.end; position += kLanes) {
      const int count = smaller(kLanes, tile.end - position);
      const float* keys = t_.own_keys + position * columns;
      stage_own_keys(keys, columns, count, t_.keys + position - grid);
      for (int i = 0; i < count; ++i) {
        stage_values(keys + i * columns + to_values, 1, t_.values + (position - grid + i) * t_.stride);
      }
    }
  }

  // `count` keys, at most a vector, become columns. What lies behind them is never used, so the last is there again.
  void stage_own_keys(const float* keys, std::size_t columns, int count, float* to) const {
    int d = 0;
    for (; d + kLanes <= head_dim_; d += kLanes) {
      V rows[kLanes];
      for (int i = 0; i < kLanes; ++i) rows[i] = Lanes::load(keys + smaller(i, count - 1) * columns + d);
      Lanes::transpose(rows);
      for (int i = 0; i < kLanes; ++i) Lanes::store(to + (d + i) * kKvTile, rows[i]);
    }
    for (; d < head_dim_; ++d) {
      for (int i = 0; i < count; ++i) to[d * kKvTile + i] = keys[i * columns + d];
    }
  }

  // body(block, place in it, position, count) for the parts of `range` that lie in one block.
  template <class Body>
  void for_each_run(PositionRange range, Body&& body) const {
    for (int position = range.begin, count; position < range.end; position += count) {
      const int block = position / cache_.block_tokens, in_block = position % cache_.block_tokens;
      count = smaller(cache_.block_tokens - in_block, range.end - position);
      body(block, in_block, position, count);
    }
  }

  // Whole vectors where the block's and the KV tile's begin allow it; what lies behind `count` in the block is never
  // used.
  void stage_keys(const T* keys, int in_block, int count, float* to) const {
    const int tokens = cache_.block_tokens;
    const int whole = tokens % kLanes == 0 && in_block % kLanes == 0 ? (count + kLanes - 1) / kLanes * kLanes : 0;
    for (int d = 0; d < head_dim_; ++d) {
      const T* from = keys + d * tokens + in_block;
      for (int i = 0; i < whole; i += kLanes) Lanes::store(to + d * kKvTile + i, Lanes::load(from + i));
      for (int i = whole; i < count; ++i) to[d * kKvTile + i] = Lanes::widen(from[i]);
    }
  }

  template <class Value>
  void stage_values(const Value* values, int count, float* to) const {
    const int whole = head_dim_ / kLanes * kLanes;
    for (int i = 0; i < count; ++i, values += head_dim_, to += t_.stride) {
      for (int d = 0; d < whole; d += kLanes) Lanes::store(to + d, Lanes::load(values + d));
      for (int d = whole; d < t_.stride; ++d) to[d] = d < head_dim_ ? Lanes::widen(values[d]) : 0;
    }
  }

  // ---- what is wanted next, on its way from memory meanwhile. A slot holds a few kilobytes of a head: too short a
  // stretch for the processor to guess, and a decoding query does little with each byte.

  // From here on prefetch() asks for the keys, or the values, of `positions` under `kv_head`.
  void look_ahead(Half half, int kv_head, PositionRange positions) {
    ahead_ = {.half = half,
              .kv_head = kv_head,
              .block = positions.begin / cache_.block_tokens,
              .end = (positions.end + cache_.block_tokens - 1) / cache_.block_tokens};
  }

  // While the P V of a KV tile is accumulated: the keys of the next KV tile, or of the next head's first.
  void look_beyond(PositionRange tile) {
    const PositionRange all = t_.seen[0];
    const AttentionPart& part = *t_.part;
    if (tile.end < all.end) {
      look_ahead(Half::kKeys, part.kv_head, {tile.end, smaller(tile.end + kKvTile, all.end)});
    } else if (part.next_kv_head >= 0) {
      look_ahead(Half::kKeys, part.next_kv_head,
                 {all.begin, smaller(all.begin / kKvTile * kKvTile + kKvTile, all.end)});
    }
  }

  // A call in the loops would make the compiler spill the sums at every step.
  __attribute__((always_inline)) void prefetch(std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += kLine, ahead_.at += kLine) {
      if (ahead_.at >= ahead_.stop && !next_block_ahead()) return;
      __builtin_prefetch(ahead_.at);
    }
  }

  __attribute__((always_inline)) bool next_block_ahead() {
    if (ahead_.block >= ahead_.end) return false;
    const T* keys = head_in(ahead_.block++, ahead_.kv_head);
    ahead_.at = reinterpret_cast<const char*>(ahead_.half == Half::kKeys ? keys : keys + half_elements());
    ahead_.stop = ahead_.at + head_elements() * sizeof(T);
    return true;
  }

  // Others have written what this thread reads and writes next, so no near cache has it. Queries [i, end) ask for a
  // share: for their results' places, and for the next head's queries, keys and values.
  __attribute__((always_inline)) void ask_beyond(int i, int end, PositionRange tile) const {
    const int group = t_.part->shape->heads / t_.part->shape->kv_heads;
    const std::size_t columns = static_cast<std::size_t>(t_.own_columns), key_bytes = head_dim_ * sizeof(float);
    const int next = t_.part->next_kv_head - t_.part->kv_head;  // heads further on; below 0: there is none
    for (int row = (i + group - 1) / group; row * group < end && tile.begin == t_.seen[0].begin; ++row) {
      ask<kToWrite>(t_.results + row * t_.results_stride, t_.result_bytes);
      if (next > 0) ask<kToRead>(t_.own_queries + next * group * head_dim_ + row * columns, group * key_bytes);
    }
    if (next <= 0) return;
    const int positions = tile.end - tile.begin;
    const std::size_t to_values = static_cast<std::size_t>(cache_.kv_heads) * head_dim_;
    const float* keys = t_.own_keys + next * head_dim_ + tile.begin * columns;
    for (int p = i * positions / t_.queries; p < end * positions / t_.queries; ++p) {
      ask<kToRead>(keys + p * columns, key_bytes);
      ask<kToRead>(keys + p * columns + to_values, key_bytes);
    }
  }
  enum Access : int { kToRead, kToWrite };
  template <Access kAccess>
  __attribute__((always_inline)) static void ask(const void* p, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(static_cast<const char*>(p) + i, kAccess);
  }

  // ---- queries

  int visit_some(int i, int grid, PositionRange tile) {
    const int left = t_.queries - i;
    if (left >= 6) return visit<6, Lanes::kWide>(i, grid, tile);
    if (left >= 4) return visit<4, Lanes::kWide>(i, grid, tile);
    if (left >= 2) return visit<2, Lanes::kWide>(i, grid, tile);
    return visit<1, 2 * Lanes::kWide>(i, grid, tile);
  }

  // kQueries queries from i on over the positions of `tile` that any of them sees; returns kQueries.
  template <int kQueries, int kVectors>
  int visit(int i, int grid, PositionRange tile) {
    const PositionRange first = t_.seen[i], last = t_.seen[i + kQueries - 1];
    const PositionRange seen{larger(tile.begin, first.begin) - grid, smaller(tile.end, last.end) - grid};
    if (seen.empty()) return kQueries;
    const int begin = seen.begin / kLanes * kLanes;
    if (direct_ && i == 0) look_ahead(Half::kValues, t_.part->kv_head, {grid + seen.begin, grid + seen.end});
    const int end = score_all<kQueries, kVectors>(i, {begin, seen.end}, grid);
    for (int q = 0; q < kQueries; ++q) update_softmax(i + q, grid, {begin, end}, t_.scores + q * kKvTile);
    if (!direct_) {
      accumulate_pv<kQueries>(i, seen, t_.values + seen.begin * t_.stride, t_.stride);
      return kQueries;
    }
    if (i == 0) look_beyond(tile);
    for_each_run({grid + seen.begin, grid + seen.end}, [&](int block, int in_block, int position, int count) {
      const int column = position - grid;
      accumulate_pv<kQueries>(i, {column, column + count}, values_of(block) + in_block * head_dim_, head_dim_);
    });
    return kQueries;
  }

  // Scores `columns` in whole vectors, kVectors at once and then fewer, none of which begins behind them; returns where
  // the last one ends.
  template <int kQueries, int kVectors>
  int score_all(int i, PositionRange columns, int grid) {
    int column = columns.begin;
    for (; columns.end - column > (kVectors - 1) * kLanes; column += kVectors * kLanes) {
      score_columns<kQueries, kVectors>(i, column, grid);
    }
    if constexpr (kVectors > 1) return score_all<kQueries, kVectors / 2>(i, {column, columns.end}, grid);
    return column;
  }

  // By keys of kVectors vectors from `column` on, where they lie.
  template <int kQueries, int kVectors>
  void score_columns(int i, int column, int grid) {
    if (!direct_) {
      const float* keys[kVectors];
      for (int v = 0; v < kVectors; ++v) keys[v] = t_.keys + column + v * kLanes;
      return score<kQueries>(i, column, keys, kKvTile);
    }
    const T* keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int position = grid + column + v * kLanes;
      keys[v] = keys_of(position / cache_.block_tokens) + position % cache_.block_tokens;
    }
    score<kQueries>(i, column, keys, cache_.block_tokens);
  }

  // scores[q][column...] of kVectors vectors of keys, element d of which lie `stride` × d behind the first: each score
  // is one chain over head_dim.
  template <int kQueries, int kVectors, class Key>
  void score(int i, int column, const Key* const (&keys)[kVectors], int stride) {
    V sums[kQueries][kVectors];
    for (auto& row : sums) {
      for (V& sum : row) sum = Lanes::splat(0);
    }
    const float* query = t_.query + static_cast<std::size_t>(i) * t_.stride;
    for (int d = 0; d < head_dim_; ++d) {
      prefetch(kVectors * kLanes * sizeof(T));
      V key[kVectors];
      for (int v = 0; v < kVectors; ++v) key[v] = Lanes::load(keys[v] + d * stride);
      for (int q = 0; q < kQueries; ++q) {
        const V element = Lanes::splat(query[q * t_.stride + d]);
        for (int v = 0; v < kVectors; ++v) sums[q][v] = Lanes::fma(element, key[v], sums[q][v]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) Lanes::store(t_.scores + q * kKvTile + column + v * kLanes, sums[q][v]);
    }
  }

  // Turns columns `whole` of a query's scores into weights, zero where it sees nothing; carries its softmax on and
  // brings its sums to the new maximum. Lane l always holds columns l, l + kLanes, ...: a column without weight adds
  // an exact zero, so it does not matter how many of those there are.
  void update_softmax(int i, int grid, PositionRange whole, float* scores) {
    if (t_.part->shape->soft_cap > 0) cap_scores(whole, scores);
    const PositionRange own = t_.seen[i];
    const PositionRange seen{larger(own.begin - grid, whole.begin), smaller(own.end - grid, whole.end)};
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

  // sums[q][:] += Σ weights[q][c] values[c][:] in the order of c; column `columns.begin` is the first of `values`.
  template <int kQueries, class Value>
  void accumulate_pv(int i, PositionRange columns, const Value* values, int stride) {
    constexpr int kVectors = Lanes::kWide;
    int d = 0;
    for (; d + kVectors * kLanes <= t_.stride; d += kVectors * kLanes) {
      accumulate_pv_columns<kQueries, kVectors>(i, d, columns, values + d, stride);
    }
    for (; d + 2 * kLanes <= t_.stride; d += 2 * kLanes) {  // a head of 32 elements, say
      accumulate_pv_columns<kQueries, 2>(i, d, columns, values + d, stride);
    }
    for (; d < t_.stride; d += kLanes) accumulate_pv_columns<kQueries, 1>(i, d, columns, values + d, stride);
  }

  // Elements [d, d + kVectors × kLanes) of it.
  template <int kQueries, int kVectors, class Value>
  void accumulate_pv_columns(int i, int d, PositionRange columns, const Value* values, int stride) {
    float* out = t_.sums + static_cast<std::size_t>(i) * t_.stride + d;
    V sums[kQueries][kVectors];
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) sums[q][v] = Lanes::load(out + q * t_.stride + v * kLanes);
    }
    for (int c = columns.begin; c < columns.end; ++c, values += stride) {
      prefetch(kVectors * kLanes * sizeof(T));
      V value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = Lanes::load(values + v * kLanes);
      for (int q = 0; q < kQueries; ++q) {
        const V weight = Lanes::splat(t_.scores[q * kKvTile + c]);
        for (int v = 0; v < kVectors; ++v) sums[q][v] = Lanes::fma(weight, value[v], sums[q][v]);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) Lanes::store(out + q * t_.stride + v * kLanes, sums[q][v]);
    }
  }

  const AttentionTiles& t_;
  const KvCacheView& cache_;
  const int head_dim_;
  const bool direct_;  // few queries: keys and values are taken from where they lie, widened on the way
  Ahead ahead_;
};

template <class Lanes>
void attend_with(const AttentionTiles& tiles) {
  if (tiles.part->cache->dtype == DType::kF32) {
    TiledAttention<Lanes, float>(tiles).run();
  } else {
    TiledAttention<Lanes, typename Lanes::Bf16>(tiles).run();
  }
}

}  // namespace
}  // namespace computron::kernels
