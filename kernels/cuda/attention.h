// Attention over cached keys and values, by one of two kernels.
//
//   split-KV decode   Any type and shape. A block takes one row, one kv head and one KV split: kKvSplit positions on a
//                     fixed grid. combine_kernel puts the splits' softmaxes together, in order. It reads each key once
//                     a row, and is for decoding and for float32.
//   tiled prefill     Two-byte caches. A block takes a tile of kTileQueries rows of one sequence on tensor cores and
//                     carries a softmax along over the keys (Milakov and Gimelshein 2018; Dao 2023).
//
// A slot holds keys, then values, each [kv_heads][block_tokens][head_dim]. With either kernel a row has the same bits
// whatever rows are beside it; the two kernels differ in rounding.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "computron/kernels/types.h"
#include "kernels/cuda/element.h"

struct CUstream_st;

namespace computron::kernels::cuda {

inline constexpr int kKvSplit = 256;     // positions of a KV split
inline constexpr int kTileQueries = 64;  // rows of a tile
inline constexpr int kMaxHeadDim = 256;

// What a batch row sees: positions [.., keys) of the sequence whose blocks begin at blocks[first_block].
struct AttentionRow {
  int position;
  int keys;
  int first_block;
};

// A score under a soft cap, 0: none. tanh x = 1 - 2 / (1 + e^2x).
COMPUTRON_HOST_DEVICE inline float capped(float score, float cap) {
  return cap > 0 ? cap * (1.0f - 2.0f / (1.0f + expf(score * (2.0f / cap)))) : score;
}

struct Range {
  int begin, end;
  COMPUTRON_HOST_DEVICE bool empty() const { return begin >= end; }
  COMPUTRON_HOST_DEVICE int size() const { return end - begin; }
};

// Key j is visible iff j < keys and, with a window, |position - j| < window: where a mask is causal, position + 1 keys
// end before the window does.
COMPUTRON_HOST_DEVICE inline Range visible(const AttentionRow& row, int window) {
  const int begin = window > 0 && row.position - window + 1 > 0 ? row.position - window + 1 : 0;
  const int reach = row.position + window;
  return {begin, window > 0 && reach < row.keys ? reach : row.keys};
}
// The part of `seen` in KV split `split`; empty (and begin may lie behind end) where there is none.
COMPUTRON_HOST_DEVICE inline Range in_split(const Range& seen, int split) {
  const int begin = split * kKvSplit, end = begin + kKvSplit;
  return {seen.begin > begin ? seen.begin : begin, seen.end < end ? seen.end : end};
}
COMPUTRON_HOST_DEVICE inline int split_count(int keys) { return (keys + kKvSplit - 1) / kKvSplit; }

// One layer's cache in device memory; `frames` and `blocks` lie there too.
struct CacheLayer {
  std::byte* pool;
  std::size_t frame_bytes;
  const FrameId* frames;
  const std::uint32_t* blocks;  // of all sequences, one after the other
  std::uint32_t slots_per_frame;
  std::size_t slot_bytes;
  std::uint32_t layers;
  std::uint32_t layer;
  int kv_heads;
  int head_dim;
  int block_tokens;

  // The slot of blocks[entry]. Slot numbers fit 32 bits (checked by the caller).
  COMPUTRON_HOST_DEVICE std::byte* slot(int entry) const {
    const std::uint32_t index = blocks[entry] * layers + layer;
    return pool + frames[index / slots_per_frame] * frame_bytes + index % slots_per_frame * slot_bytes;
  }
  // Element of the slot at which head `head`'s key of a position begins, and from there to its value.
  COMPUTRON_HOST_DEVICE std::size_t key_in_slot(int head, int in_block) const {
    return (static_cast<std::size_t>(head) * block_tokens + in_block) * head_dim;
  }
  COMPUTRON_HOST_DEVICE std::size_t key_to_value() const {
    return static_cast<std::size_t>(kv_heads) * block_tokens * head_dim;
  }
};

// Puts element c of a row's keys and values, [2][kv_heads][head_dim] behind the row's queries, into the cache.
template <class T>
struct StoreKeysValues {
  const float* qkv;  // [.., columns]
  int columns;
  int first_column;  // of the keys
  const AttentionRow* rows;
  CacheLayer cache;

  COMPUTRON_HOST_DEVICE void operator()(int r, int c) const {
    if (rows[r].keys == 0) return;  // of no sequence
    const int width = cache.kv_heads * cache.head_dim;
    const int head = c % width / cache.head_dim, element = c % cache.head_dim;
    const int position = rows[r].position;
    T* key = reinterpret_cast<T*>(cache.slot(rows[r].first_block + position / cache.block_tokens)) +
             cache.key_in_slot(head, position % cache.block_tokens);
    const float value = qkv[static_cast<std::size_t>(r) * columns + first_column + c];
    narrow(value, key[element + (c < width ? 0 : cache.key_to_value())]);
  }
};

// The arguments of both kernels.
struct AttentionCall {
  AttentionShape shape;
  const float* qkv;          // [batch rows, (heads + 2 kv_heads) × head_dim]
  const AttentionRow* rows;  // [batch rows]
  CacheLayer cache;
  DType cache_dtype;
  std::byte* out;  // [batch rows, heads × head_dim]
  DType out_dtype;
  const float* sinks;  // [heads] scores that belong to no key, or null

  COMPUTRON_HOST_DEVICE int group() const { return shape.heads / shape.kv_heads; }
  COMPUTRON_HOST_DEVICE int qkv_columns() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
};

// ---- split-KV decode

// The rows numbered row_ids[0, count). Where the longest has several KV splits, each leaves partial results in
// `partial`, [count][heads][splits] of partial_floats(head_dim): the split's P V [head_dim], its largest score and its
// sum of exponentials.
struct DecodeRows {
  const int* row_ids;
  int count;
  int splits;  // of the longest row
  float* partial;
};
COMPUTRON_HOST_DEVICE inline int partial_floats(int head_dim) { return head_dim + 2; }
COMPUTRON_HOST_DEVICE inline std::size_t partial_place(int i, int heads, int head, int splits, int split,
                                                       int head_dim) {
  return ((static_cast<std::size_t>(i) * heads + head) * splits + split) * partial_floats(head_dim);
}

// How the threads of a block partition keys: `lanes` neighbours hold one key, `vectors` pieces of `piece` elements
// each; piece v of lane l begins at element_of. `aligned`: rows of the cache lie at multiples of 16 bytes.
struct KeyPartition {
  int piece, lanes, vectors;
};
constexpr KeyPartition key_partition(std::size_t element_bytes, int head_dim, bool aligned) {
  const int whole = static_cast<int>(16 / element_bytes);
  if (!aligned || head_dim % whole != 0) return {1, 32, 8};
  const int pieces = head_dim / whole;
  if (pieces <= 8) return {whole, 8, 1};
  if (pieces <= 16) return {whole, 16, 1};
  return {whole, 32, pieces <= 32 ? 1 : 2};
}
COMPUTRON_HOST_DEVICE constexpr int element_of(int piece, int lanes, int v, int lane) {
  return (v * lanes + lane) * piece;
}

void attend_decode(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part);

// ---- tiled prefill

// Rows [row, row + rows) of the batch, consecutive positions of one sequence.
struct QueryTile {
  int row;
  int rows;
};
void attend_prefill(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count);

}  // namespace computron::kernels::cuda
