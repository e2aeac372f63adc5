// Attention of many queries, of one head: a KV tile's keys and values are widened to float32 first and lie side by side
// then, keys as [head_dim][kKvTile]: two small matrix products with a softmax between. An encoder's come from the rows
// of its pass.
#pragma once

#include "kernels/cpu/attention_steps_impl.h"

namespace computron::kernels {
namespace {

// T: what the cache holds.
template <class Lanes, class T>
class TiledAttention : AttentionSteps<Lanes> {
  using Base = AttentionSteps<Lanes>;
  using Base::head_dim_;
  using Base::kLanes;
  using Base::t_;
  using typename Base::V;
  static constexpr std::size_t kLine = 64;

 public:
  explicit TiledAttention(const AttentionTiles& tiles) : Base(tiles), cache_(*tiles.part->cache) {}

  void run() const {
    const PositionRange first = t_.seen[0], last = t_.seen[t_.queries - 1];
    for (int begin = first.begin / kKvTile * kKvTile; begin < last.end; begin += kKvTile) {
      const PositionRange tile{larger(begin, first.begin), smaller(begin + kKvTile, last.end)};
      stage(begin, tile);
      for (int i = 0, end; i < t_.queries; i = end) {
        end = i + visit_some(i, begin, tile);
        if (t_.own_keys != nullptr) ask_beyond(i, end, tile);
      }
    }
  }

 private:
  // ---- staging: the KV tile's keys and values as float32

  // The head's place in the slot of the `block`-th block: keys [head_dim][block_tokens], then, kv_heads times that
  // further on, values [block_tokens][head_dim].
  const T* keys_of(int block) const {
    const std::byte* slot = cache_.slot(t_.part->sequence->blocks[static_cast<std::size_t>(block)], t_.part->layer);
    return reinterpret_cast<const T*>(slot) + t_.kv_head * head_elements();
  }
  const T* values_of(int block) const { return keys_of(block) + cache_.kv_heads * head_elements(); }
  std::size_t head_elements() const { return static_cast<std::size_t>(cache_.block_tokens) * head_dim_; }

  void stage(int grid, PositionRange tile) const {
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

  // Others have written what this thread reads and writes next, so no near cache has it. Queries [i, end) ask for a
  // share: for their results' places, and for the next head's queries, keys and values.
  __attribute__((always_inline)) void ask_beyond(int i, int end, PositionRange tile) const {
    const int group = t_.part->shape->heads / t_.part->shape->kv_heads;
    const std::size_t columns = static_cast<std::size_t>(t_.own_columns), key_bytes = head_dim_ * sizeof(float);
    const bool next = t_.kv_head + 1 < t_.part->kv_head + t_.part->kv_heads;
    for (int row = (i + group - 1) / group; row * group < end && tile.begin == t_.seen[0].begin; ++row) {
      ask<kToWrite>(t_.results + row * t_.results_stride, t_.result_bytes);
      if (next) ask<kToRead>(t_.own_queries + group * head_dim_ + row * columns, group * key_bytes);
    }
    if (!next) return;
    const int positions = tile.end - tile.begin;
    const std::size_t to_values = static_cast<std::size_t>(cache_.kv_heads) * head_dim_;
    const float* keys = t_.own_keys + head_dim_ + tile.begin * columns;
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

  int visit_some(int i, int grid, PositionRange tile) const {
    const int left = t_.queries - i;
    if (left >= 6) return visit<6, Lanes::kWide>(i, grid, tile);
    if (left >= 4) return visit<4, Lanes::kWide>(i, grid, tile);
    if (left >= 2) return visit<2, Lanes::kWide>(i, grid, tile);
    return visit<1, 2 * Lanes::kWide>(i, grid, tile);
  }

  // kQueries queries from i on over the positions of `tile` that any of them sees; returns kQueries.
  template <int kQueries, int kVectors>
  int visit(int i, int grid, PositionRange tile) const {
    const PositionRange first = t_.seen[i], last = t_.seen[i + kQueries - 1];
    const PositionRange seen{larger(tile.begin, first.begin) - grid, smaller(tile.end, last.end) - grid};
    if (seen.empty()) return kQueries;
    const int begin = seen.begin / kLanes * kLanes;
    const int end = score_all<kQueries, kVectors>(i, {begin, seen.end});
    for (int q = 0; q < kQueries; ++q) {
      const PositionRange own = t_.seen[i + q];
      this->update_softmax(i + q, {own.begin - grid, own.end - grid}, {begin, end}, t_.scores + q * kKvTile);
    }
    this->template accumulate_pv<kQueries>(i, seen, t_.scores, t_.values + seen.begin * t_.stride, t_.stride,
                                           [](int, int) {});
    return kQueries;
  }

  // Scores `columns` in whole vectors, kVectors at once and then fewer, none of which begins behind them; returns where
  // the last one ends.
  template <int kQueries, int kVectors>
  int score_all(int i, PositionRange columns) const {
    int column = columns.begin;
    for (; columns.end - column > (kVectors - 1) * kLanes; column += kVectors * kLanes) {
      const float* keys[kVectors];
      for (int v = 0; v < kVectors; ++v) keys[v] = t_.keys + column + v * kLanes;
      this->template score<kQueries>(i, keys, kKvTile, t_.scores + column, [](int) {});
    }
    if constexpr (kVectors > 1) return score_all<kQueries, kVectors / 2>(i, {column, columns.end});
    return column;
  }

  const KvCacheView& cache_;
};

}  // namespace
}  // namespace computron::kernels
