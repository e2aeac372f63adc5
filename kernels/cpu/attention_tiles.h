// The inner part of attention: scores, softmax and weighted values of a part's queries, KV tile by KV tile. Included by
// attention_avx2.cpp and attention_avx512.cpp, each of which gives it vectors of its own width (`Lanes`).
//
// A vector holds one element of as many keys as it has lanes, and a score is one chain over head_dim. There are two
// ways, with the same bits: blocks of the cache under several heads, for few queries (attention_blocks_impl.h), and
// tiles of one head in scratch memory, for many (attention_tiles_impl.h).
#pragma once

#include "kernels/cpu/attention.h"

namespace computron::kernels {

inline constexpr int kKvTile = 128;
inline constexpr int kMaxTile = 6;    // queries that go through a KV tile together
inline constexpr int kMaxLanes = 16;  // of any Lanes

// The arguments of the inner part; its arrays are memory of AttentionScratch.
struct AttentionTiles {
  const AttentionPart* part;
  int kv_head, heads;     // of the part: [kv_head, kv_head + heads)
  bool blocks;            // the way of few queries; else heads is 1
  int queries;            // a head: rows × group; under each key/value head, query i is of row i / group
  int stride;             // of a query and of values: head_dim rounded up to kMaxLanes
  const float* qkv;       // as attend() got it
  const float* own_keys;  // of the sequence's first row, others `own_columns` apart, values behind all heads' keys; or
  int own_columns;        // null: keys and values are taken from the cache
  const float* own_queries;    // of the part's first row, unscaled; its others lie `own_columns` apart, too
  const std::byte* results;    // where the part's first row is written
  std::size_t result_bytes;    // of a row
  std::size_t results_stride;  // bytes from one row to the next
  const PositionRange* seen;   // [queries] positions that each sees
  float* query;                // [heads][queries][stride], scaled: by log2 e, too, but where scores are capped
  float* sums;                 // [heads][queries][stride] weighted values so far
  Softmax* softmax;            // [heads][queries], of scores × log2 e
  float* keys;                 // [head_dim][kKvTile] of the KV tile
  float* values;               // [kKvTile][stride] of the KV tile
  float* scores;               // blocks: [heads][queries][kKvTile]; else [kMaxTile][kKvTile]
};

// Stores keys and values of the part's rows under `kv_head` (store_keys_values).
void store_keys_values(const AttentionPart& part, int kv_head, const float* qkv);

void attend_avx2(const AttentionTiles& tiles);
void attend_avx512(const AttentionTiles& tiles);

}  // namespace computron::kernels
