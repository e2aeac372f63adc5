// Attention of a few queries of each head (decoding): bound by memory, so keys and values are read once and where they
// lie, those of neighbouring heads one after the other.
#pragma once

#include "kernels/cpu/attention_steps_impl.h"

namespace computron::kernels {
namespace {

// T: what the cache holds. A block of the cache has keys for each head, [head_dim][block_tokens], one behind the other,
// and then values, [block_tokens][head_dim]. Of a KV tile the keys are met, a few blocks at a time under all heads, and
// then the values; while those of one head are used, the next ones are on their way from memory.
template <class Lanes, class T>
class BlockAttention : AttentionSteps<Lanes> {
  using Base = AttentionSteps<Lanes>;
  using Base::head_dim_;
  using Base::kLanes;
  using Base::t_;
  static constexpr int kVectors = 2;  // of keys, so that chains of several sums overlap
  static constexpr std::size_t kLine = 64;

  // Where up to kVectors vectors of keys are, or what else is read then.
  struct Keys {
    int vectors;
    const T* at[kVectors];
  };

 public:
  explicit BlockAttention(const AttentionTiles& tiles)
      : Base(tiles),
        cache_(*tiles.part->cache),
        head_elements_(static_cast<std::size_t>(cache_.block_tokens) * head_dim_) {}

  void run() const {
    const PositionRange all{t_.seen[0].begin, t_.seen[t_.queries - 1].end};
    for (int grid = all.begin / kKvTile * kKvTile; grid < all.end; grid += kKvTile) {
      const PositionRange tile{larger(grid, all.begin), smaller(grid + kKvTile, all.end)};
      meet_keys(grid, tile);
      meet_values(grid, tile, all.end);
    }
  }

 private:
  // ---- places under the part's first head

  const T* block_of(int position) const {
    const auto block = t_.part->sequence->blocks[static_cast<std::size_t>(position / cache_.block_tokens)];
    return reinterpret_cast<const T*>(cache_.slot(block, t_.part->layer)) + t_.kv_head * head_elements_;
  }
  const T* value_of(int position) const {
    const int in_block = position % cache_.block_tokens;
    return block_of(position) + cache_.kv_heads * head_elements_ + static_cast<std::size_t>(in_block) * head_dim_;
  }
  Keys keys_of(int position, int end) const {
    Keys keys = {smaller(kVectors, (end - position + kLanes - 1) / kLanes), {}};
    for (int v = 0; v < keys.vectors; ++v, position += kLanes) {
      keys.at[v] = block_of(position) + position % cache_.block_tokens;
    }
    return keys;
  }

  // ---- keys, and then values

  void meet_keys(int grid, PositionRange tile) const {
    const int first = tile.begin / kLanes * kLanes;
    Keys keys = keys_of(first, tile.end);
    for (int position = first, end; position < tile.end; position = end) {
      end = position + keys.vectors * kLanes;
      const T* values = value_of(tile.begin);
      const Keys later = end < tile.end ? keys_of(end, tile.end) : Keys{kVectors, {values, values + head_elements_}};
      const int own = t_.part->sequence->start + t_.part->row;
      const bool stores = t_.part->own_rows == OwnRows::kToCache && position <= own && own < end;
      for (int head = 0; head < t_.heads; ++head) {
        if (stores) store_keys_values(*t_.part, t_.kv_head + head, t_.qkv);
        const Keys next = head + 1 < t_.heads ? under_next_head(keys) : later;
        keys.vectors == kVectors ? meet_under<kVectors>(head, position - grid, keys, next)
                                 : meet_under<1>(head, position - grid, keys, next);
        keys = next;
      }
    }
  }

  Keys under_next_head(Keys keys) const {
    for (int v = 0; v < keys.vectors; ++v) keys.at[v] += head_elements_;
    return keys;
  }

  template <int kCount>
  void meet_under(int head, int column, const Keys& keys, const Keys& next) const {
    const T *now[kCount], *then[kCount];
    for (int v = 0; v < kCount; ++v) now[v] = keys.at[v], then[v] = next.at[smaller(v, next.vectors - 1)];
    const int tokens = cache_.block_tokens;
    const auto ask = [&](int d) __attribute__((always_inline)) {
      for (int v = 0; v < kCount; ++v) ask_for(then[v] + d * tokens, kLanes);
    };
    for_some_queries(
        head, [&]<int kQueries>(int i) { this->template score<kQueries>(i, now, tokens, scores_of(i) + column, ask); });
  }

  void meet_values(int grid, PositionRange tile, int all_end) const {
    const T* values = value_of(tile.begin);
    for (int position = tile.begin, end; position < tile.end; position = end) {
      end = smaller(position / cache_.block_tokens * cache_.block_tokens + cache_.block_tokens, tile.end);
      const T* later = end < tile.end ? value_of(end) : end < all_end ? block_of(end) : values;
      for (int head = 0; head < t_.heads; ++head) {
        if (position == tile.begin) weigh(head, grid, tile);
        const T* next = head + 1 < t_.heads ? values + head_elements_ : later;
        const auto ask = [&](int c, int d) __attribute__((always_inline)) {
          ask_for(next + (c + grid - position) * head_dim_ + d, Lanes::kWide * kLanes);
        };
        for_some_queries(head, [&]<int kQueries>(int i) {
          this->template accumulate_pv<kQueries>(i, {position - grid, end - grid}, scores_of(i), values, head_dim_,
                                                 ask);
        });
        values = next;
      }
    }
  }

  // The columns of whole vectors that meet_keys has filled.
  void weigh(int head, int grid, PositionRange tile) const {
    const int first = (tile.begin - grid) / kLanes * kLanes;
    const PositionRange whole{first, first + (tile.end - grid - first + kLanes - 1) / kLanes * kLanes};
    for (int q = 0; q < t_.queries; ++q) {
      const int i = head * t_.queries + q;
      const PositionRange seen = t_.seen[q];
      this->update_softmax(i, {seen.begin - grid, seen.end - grid}, whole, scores_of(i));
    }
  }

  float* scores_of(int i) const { return t_.scores + static_cast<std::size_t>(i) * kKvTile; }

  // body.operator()<kQueries>(i) for the queries of a head, some at a time.
  template <class Body>
  void for_some_queries(int head, Body&& body) const {
    int i = head * t_.queries, left = t_.queries;
    for (; left >= 4; left -= 4, i += 4) body.template operator()<4>(i);
    if (left >= 2) body.template operator()<2>(i), left -= 2, i += 2;
    if (left == 1) body.template operator()<1>(i);
  }

  __attribute__((always_inline)) static void ask_for(const T* elements, int count) {
    for (std::size_t i = 0; i < count * sizeof(T); i += kLine) {
      __builtin_prefetch(reinterpret_cast<const char*>(elements) + i);
    }
  }

  const KvCacheView& cache_;
  const std::size_t head_elements_;  // of a block's keys, or values
};

}  // namespace
}  // namespace computron::kernels
