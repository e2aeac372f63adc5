// Attention over cached keys and values, by one of two kernels.
//
//   split-KV decode   Any type and shape. A block takes one row, one kv head and one KV split: kv_split() positions on
//   a
//                     fixed grid. combine_kernel puts the splits' softmaxes together, in order. It reads each key once
//                     a row, and is for decoding and for float32. Of aligned two-byte caches it uses tensor cores,
//                     and rounds neither queries nor weights to two bytes.
//   tiled prefill     Two-byte caches. A block takes a tile of kTileQueries rows of one sequence on tensor cores and
//                     carries a softmax along over the keys (Milakov and Gimelshein 2018; Dao 2023), kTileKeys or
//                     kFewTileKeys of them a round (prefill_keys). Where a block has no room for either, split-KV
//                     decode takes all rows.
//
// A slot holds keys, then values, each [kv_heads][block_tokens][head_dim]. With either kernel a row has the same bits
// whatever rows are beside it; the two kernels differ in rounding, and so do rounds of different lengths.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "computron/kernels/types.h"
#include "kernels/cuda/element.h"

struct CUstream_st;

namespace computron::kernels::cuda {

inline constexpr int kKvSplit = 128;      // positions of a KV split
inline constexpr int kLongKvSplit = 512;  // of a row that sees more than kManyKeys
inline constexpr int kManyKeys = 16384;
inline constexpr int kTileQueries = 128;  // rows of a tile
inline constexpr int kTileKeys = 64;      // that a tile meets in a round
inline constexpr int kFewTileKeys = 32;   // where a block has no room for so many
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
// Positions of each KV split of a row with so many keys. It depends on nothing else, as the order of sums must: few and
// long rows want splits for all multiprocessors, and the longest no more partial results than there is room for.
COMPUTRON_HOST_DEVICE inline int kv_split(int keys) { return keys <= kManyKeys ? kKvSplit : kLongKvSplit; }
COMPUTRON_HOST_DEVICE inline int split_count(int keys) { return (keys + kv_split(keys) - 1) / kv_split(keys); }
// The part of `seen` in split `split` of `length` positions; empty (and begin may lie behind end) where there is none.
COMPUTRON_HOST_DEVICE inline Range in_split(const Range& seen, int split, int length) {
  const int begin = split * length, end = begin + length;
  return {seen.begin > begin ? seen.begin : begin, seen.end < end ? seen.end : end};
}

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

  // The number of a block's slot, which fits 32 bits (checked by the caller), and where it lies in its frame.
  COMPUTRON_HOST_DEVICE std::uint32_t slot_number(std::uint32_t block) const { return block * layers + layer; }
  COMPUTRON_HOST_DEVICE std::byte* slot_in(FrameId frame, std::uint32_t number) const {
    return pool + frame * frame_bytes + number % slots_per_frame * slot_bytes;
  }
  // The slot of blocks[entry].
  COMPUTRON_HOST_DEVICE std::byte* slot(int entry) const {
    const std::uint32_t number = slot_number(blocks[entry]);
    return slot_in(frames[number / slots_per_frame], number);
  }
  // Element of the slot at which head `head`'s key of a position begins, and from there to its value.
  COMPUTRON_HOST_DEVICE std::size_t key_in_slot(int head, int in_block) const {
    return (static_cast<std::size_t>(head) * block_tokens + in_block) * head_dim;
  }
  COMPUTRON_HOST_DEVICE std::size_t key_to_value() const {
    return static_cast<std::size_t>(kv_heads) * block_tokens * head_dim;
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

// Whether rows of the cache lie at multiples of 16 bytes; then rows of two-byte elements do so in float32, too.
inline bool is_aligned(const CacheLayer& cache, std::size_t element_bytes) {
  const auto pool = reinterpret_cast<std::uintptr_t>(cache.pool);
  return (pool | cache.frame_bytes | cache.slot_bytes | cache.head_dim * element_bytes) % 16 == 0;
}

// ---- what is cached

// Puts a row's keys and values, heads [0, 2 kv_heads) behind its queries, into the cache, kPiece elements at a time.
// Unless kPiece is 1, they lie at multiples of 16 bytes.
template <class T, int kPiece>
struct StoreKeysValues {
  const float* qkv;  // [.., columns]
  int columns;
  int first_column;  // of the keys
  const AttentionRow* rows;
  CacheLayer cache;

  COMPUTRON_HOST_DEVICE static StoreKeysValues of(const AttentionCall& call) {
    return {call.qkv, call.qkv_columns(), call.shape.heads * call.shape.head_dim, call.rows, call.cache};
  }
  // Of the key of a row's head 0; null for a row of no sequence.
  COMPUTRON_HOST_DEVICE T* place(int r) const {
    const AttentionRow row = rows[r];
    if (row.keys == 0) return nullptr;
    const int block = row.position / cache.block_tokens;
    return reinterpret_cast<T*>(cache.slot(row.first_block + block)) +
           cache.key_in_slot(0, row.position - block * cache.block_tokens);
  }
  // Values lie behind the keys as if they were of further heads.
  COMPUTRON_HOST_DEVICE void operator()(int r, T* place, int head, int piece) const {
    struct alignas(kPiece * sizeof(T)) Narrow {
      T elements[kPiece];
    } out;
    constexpr int kFloats = kPiece < 4 ? kPiece : 4;
    struct alignas(kFloats * sizeof(float)) Floats {
      float elements[kFloats];
    };
    const float* from = qkv + static_cast<std::size_t>(r) * columns + first_column + head * cache.head_dim;
    for (int i = 0; i < kPiece; i += kFloats) {
      const Floats in = *reinterpret_cast<const Floats*>(from + piece * kPiece + i);
      for (int e = 0; e < kFloats; ++e) narrow(in.elements[e], out.elements[i + e]);
    }
    *reinterpret_cast<Narrow*>(place + cache.key_in_slot(head, 0) + piece * kPiece) = out;
  }
};
// Those of all rows of `qkv`.
void store_keys_values(CUstream_st* stream, const AttentionCall& call, int rows);

// ---- split-KV decode

// The rows numbered row_ids[0, count). Where the longest has several KV splits, each leaves partial results in
// `partial`, [count][heads][splits] of partial_floats(head_dim): the split's P V [head_dim], and at
// softmax_in_partial(head_dim) its largest score and its sum of exponentials. Each begins at a multiple of 16 bytes.
struct DecodeRows {
  const int* row_ids;
  int count;
  int splits;  // of the longest row
  float* partial;
  bool store;  // the rows' own keys and values first, which no other row sees: store_keys_values() in the same kernel
};
COMPUTRON_HOST_DEVICE inline int softmax_in_partial(int head_dim) { return (head_dim + 3) / 4 * 4; }
COMPUTRON_HOST_DEVICE inline int partial_floats(int head_dim) { return softmax_in_partial(head_dim) + 4; }
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
// Whether it uses tensor cores, and may store: an aligned cache of two-byte elements.
inline bool decodes_on_tensor_cores(const AttentionCall& call) {
  return call.cache_dtype != DType::kF32 && is_aligned(call.cache, size_of(call.cache_dtype)) &&
         reinterpret_cast<std::uintptr_t>(call.qkv) % 16 == 0;
}
// The splits alone.
void attend_splits_on_tensor_cores(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part);

// ---- tiled prefill

// Rows [row, row + rows) of the batch, consecutive positions of one sequence.
struct QueryTile {
  int row;
  int rows;
};

// Bytes of shared memory of a block: its queries, and keys and values of two rounds with the places where they lie.
// Rows of head_dim are filled up to 64, 128 or 256 elements of two bytes, and 16 bytes of padding.
constexpr int prefill_shared_bytes(int head_dim, int keys) {
  const int row_bytes = 2 * (head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : kMaxHeadDim) + 16;
  return (kTileQueries + 4 * keys) * row_bytes + 2 * keys * static_cast<int>(sizeof(const void*));
}
// Keys of a round where a block may have `shared_bytes`: kTileKeys if there is room for them, else kFewTileKeys; 0:
// tiled prefill has no room. Softmaxes are brought to a new maximum, and weights are rounded, once a round, so a row's
// bits depend on it. All GPUs of one kind have as much, and where a block may have 227 KiB it is kTileKeys for every
// head_dim.
constexpr int prefill_keys(int head_dim, int shared_bytes) {
  if (prefill_shared_bytes(head_dim, kTileKeys) <= shared_bytes) return kTileKeys;
  const bool fits = head_dim > 64 && prefill_shared_bytes(head_dim, kFewTileKeys) <= shared_bytes;
  return fits ? kFewTileKeys : 0;
}

// `keys`: what prefill_keys() says, but not 0. Error{kDevice} where the device has no room for so many.
void attend_prefill(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count, int keys);

}  // namespace computron::kernels::cuda
