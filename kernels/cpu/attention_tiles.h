// The inner part of attention: scores, softmax and weighted values of a part's queries, KV tile by KV tile. Included by
// attention_avx2.cpp and attention_avx512.cpp, each of which gives it vectors of its own width (`Lanes`).
//
// A vector holds one element of as many keys as it has lanes, and a score is one chain over head_dim. For many queries
// a KV tile's keys and values are widened to float32 first and lie side by side then, keys as [head_dim][kKvTile]: two
// small matrix products with a softmax between. One query or a few (decoding) take them from the cache, in the same
// order. An encoder's come from the rows of its pass.
#pragma once

#include "kernels/cpu/attention.h"

namespace computron::kernels {

inline constexpr int kKvTile = 128;
inline constexpr int kMaxTile = 6;    // queries that go through a KV tile together
inline constexpr int kMaxLanes = 16;  // of any Lanes

// The arguments of the inner part; its arrays are memory of AttentionScratch.
struct AttentionTiles {
  const AttentionPart* part;
  int queries;  // of the part: rows × group; query i is row i / group, head i % group of those that share the key head
  int stride;   // of a query and of values: head_dim rounded up to kMaxLanes
  const float* own_keys;  // of the sequence's first row, others `own_columns` apart, values behind all heads' keys; or
  int own_columns;        // null: keys and values are taken from the cache
  const float* own_queries;    // of the part's first row, unscaled; its others lie `own_columns` apart, too
  const std::byte* results;    // where the part's first row is written
  std::size_t result_bytes;    // of a row
  std::size_t results_stride;  // bytes from one row to the next
  const PositionRange* seen;   // [queries] positions that each sees
  float* query;                // [queries][stride], scaled: by log2 e, too, but where scores are capped
  float* sums;                 // [queries][stride] weighted values so far
  Softmax* softmax;            // [queries], of scores × log2 e
  float* keys;                 // [head_dim][kKvTile] of the KV tile
  float* values;               // [kKvTile][stride] of the KV tile
  float* scores;               // [kMaxTile][kKvTile]
};

void attend_avx2(const AttentionTiles& tiles);
void attend_avx512(const AttentionTiles& tiles);

}  // namespace computron::kernels
