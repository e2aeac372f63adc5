// Attention of some rows of one sequence under some key/value heads, over cached keys and values.
//
// Keys are visited in KV tiles of kKvTile positions from position 0 on, whatever the cache's blocks and the rows
// beside, and a softmax is carried along (maximum, sum, weighted values: Milakov and Gimelshein 2018). Within a KV tile
// every sum has one fixed order, so a row has the same bits alone, in any batch and in any cutting of a prompt (with
// one Isa).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "computron/kernels/types.h"
#include "kernels/cpu/isa.h"

namespace computron::kernels {

// Where keys and values of the rows of a pass are: in the cache already; in qkv, and attend() puts those of its part
// into the cache, too; or nowhere but in qkv (sees_own_rows).
enum class OwnRows : unsigned char { kInCache, kToCache, kNotInCache };

// Rows [row, row + rows) of `sequence` (counted from its first), and the query heads that use key/value heads
// [kv_head, kv_head + kv_heads).
struct AttentionPart {
  const AttentionShape* shape = nullptr;
  const KvCacheView* cache = nullptr;
  const SequenceRows* sequence = nullptr;
  int layer = 0;
  int kv_head = 0;
  int kv_heads = 1;
  int row = 0;
  int rows = 0;
  const float* sinks = nullptr;          // [heads] scores that belong to no key, or null
  OwnRows own_rows = OwnRows::kInCache;  // kToCache: no row sees rows of other parts
};

// Whether qkv has every key that the sequence's rows see, as the cache would have it, and no later pass sees them: they
// need not be stored.
bool sees_own_rows(const AttentionShape& shape, const SequenceRows& sequence, const KvCacheView& cache);

struct PositionRange {
  int begin, end;
  bool empty() const { return begin >= end; }
};

// The running softmax of one query: the largest score so far and Σ 2^(score - max).
struct Softmax {
  float max;
  float sum;
};

// What one thread needs while it attends; grows to the largest part seen. Arrays begin at the first whole cache line.
struct AttentionScratch {
  std::vector<float> queries, sums;  // [heads, queries, head_dim rounded up to whole vectors]
  std::vector<PositionRange> seen;   // [queries]
  std::vector<Softmax> softmax;      // [heads, queries]
  std::vector<float> keys, values;   // of a KV tile, widened
  std::vector<float> scores;
};

// Stores the keys and values of the part's rows and heads from qkv [batch rows, (heads + 2 kv_heads) × head_dim] into
// the cache, converted.
void store_keys_values(const AttentionPart& part, const float* qkv);

// out [batch rows, heads × head_dim] (float32 or bfloat16): the part's rows and heads. The bits do not depend on
// part.own_rows.
void attend(const AttentionPart& part, const float* qkv, std::byte* out, DType out_dtype, AttentionScratch& scratch,
            Isa isa = usable_isa());

}  // namespace computron::kernels
