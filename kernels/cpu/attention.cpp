// Around the inner part (attention_tiles.h): queries in, keys and values into the cache, results out.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

int group_of(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
int qkv_columns(const AttentionShape& shape) { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

void scale(const float* x, int n, float factor, float* out) {
  map_lanes(
      n, out, [f = splat(factor)](F8 v) { return mul(v, f); }, x);
}

// Key/value heads of a part that are attended together.
struct Heads {
  int first, count;
};

// Where the first query of the part's row, under `kv_head`, begins in a row-major array of `columns` a batch row, whose
// heads lie side by side.
std::size_t first_element(const AttentionPart& part, int kv_head, int columns) {
  return static_cast<std::size_t>(part.sequence->row + part.row) * columns +
         static_cast<std::size_t>(kv_head) * group_of(*part.shape) * part.shape->head_dim;
}

// Calls body(i, its first element within such an array) for all queries under `heads`; i as AttentionTiles counts them.
template <class Body>
void for_each_query(const AttentionPart& part, Heads heads, int columns, Body&& body) {
  const int group = group_of(*part.shape), queries = part.rows * group;
  std::size_t row = first_element(part, heads.first, columns);
  for (int r = 0; r < part.rows; ++r, row += columns) {
    std::size_t element = row;
    for (int head = 0; head < heads.count; ++head) {
      for (int i = 0; i < group; ++i, element += part.shape->head_dim) body(head * queries + r * group + i, element);
    }
  }
}

// Positions that a row sees; rows are counted from the sequence's first of this pass.
PositionRange seen_by(const AttentionPart& part, int row) {
  const AttentionShape& shape = *part.shape;
  const int position = part.sequence->start + row, first = position - shape.window + 1;
  const int last = part.sequence->start + part.sequence->rows, reach = position + shape.window;
  const int end = shape.causal ? position + 1 : shape.window > 0 && reach < last ? reach : last;
  return {shape.window > 0 && first > 0 ? first : 0, end};
}

void find_seen(const AttentionPart& part, std::vector<PositionRange>& seen) {
  const auto group = static_cast<std::size_t>(group_of(*part.shape));
  seen.resize(static_cast<std::size_t>(part.rows) * group);
  PositionRange* next = seen.data();
  for (int row = part.row; row < part.row + part.rows; ++row) next = std::fill_n(next, group, seen_by(part, row));
}

// Room for `floats` floats at whole cache lines: vectors that cross them cost twice.
float* aligned(std::vector<float>& memory, std::size_t floats) {
  constexpr std::size_t kLine = 64;
  memory.resize(std::max(memory.size(), floats + kLine / sizeof(float)));
  return reinterpret_cast<float*>(round_up(reinterpret_cast<std::uintptr_t>(memory.data()), std::uintptr_t{kLine}));
}

// A softmax has seen nothing at its begin, or the sink of the query's head.
void begin_softmax(const AttentionPart& part, Heads heads, std::vector<Softmax>& softmax) {
  const int group = group_of(*part.shape), queries = part.rows * group;
  softmax.assign(static_cast<std::size_t>(heads.count) * queries, {-std::numeric_limits<float>::infinity(), 0});
  if (part.sinks == nullptr) return;
  for (int i = 0; i < heads.count * queries; ++i) {
    softmax[i] = {part.sinks[(heads.first + i / queries) * group + i % group] * kLog2E, 1};
  }
}

// Key and value under `kv_head` in the sequence's first row.
const float* first_key(const AttentionPart& part, int kv_head, const float* qkv) {
  const AttentionShape& shape = *part.shape;
  return qkv + static_cast<std::size_t>(part.sequence->row) * qkv_columns(shape) +
         static_cast<std::size_t>(shape.heads + kv_head) * shape.head_dim;
}

// Whether the part's queries are too few for a tile's keys in scratch memory to pay, and blocks hold whole vectors.
bool goes_by_blocks(const AttentionPart& part) {
  constexpr int kFewQueries = 8;
  return part.own_rows != OwnRows::kNotInCache && part.rows * group_of(*part.shape) <= kFewQueries &&
         part.cache->block_tokens % kMaxLanes == 0 && part.shape->head_dim % kMaxLanes == 0;
}

AttentionTiles make_tiles(const AttentionPart& part, Heads heads, bool blocks, const float* qkv, const std::byte* out,
                          DType out_dtype, AttentionScratch& scratch) {
  const int columns = qkv_columns(*part.shape), out_columns = part.shape->heads * part.shape->head_dim;
  const int queries = part.rows * group_of(*part.shape), head_dim = part.shape->head_dim;
  const int stride = round_up(head_dim, kMaxLanes);
  const std::size_t all_queries = static_cast<std::size_t>(heads.count) * queries;
  const std::size_t tile = static_cast<std::size_t>(blocks ? 0 : kKvTile);  // in scratch memory
  const bool own = part.own_rows == OwnRows::kNotInCache;
  begin_softmax(part, heads, scratch.softmax);
  const AttentionTiles tiles = {
      .part = &part,
      .kv_head = heads.first,
      .heads = heads.count,
      .blocks = blocks,
      .queries = queries,
      .stride = stride,
      .qkv = qkv,
      .own_keys = own ? first_key(part, heads.first, qkv) : nullptr,
      .own_columns = columns,
      .own_queries = qkv + first_element(part, heads.first, columns),
      .results = out + first_element(part, heads.first, out_columns) * size_of(out_dtype),
      .result_bytes = head_dim * group_of(*part.shape) * size_of(out_dtype),
      .results_stride = out_columns * size_of(out_dtype),
      .seen = scratch.seen.data(),
      .query = aligned(scratch.queries, all_queries * stride),
      .sums = aligned(scratch.sums, all_queries * stride),
      .softmax = scratch.softmax.data(),
      .keys = aligned(scratch.keys, tile * head_dim),
      .values = aligned(scratch.values, tile * stride),
      .scores = aligned(scratch.scores, (blocks ? all_queries : std::size_t{kMaxTile}) * kKvTile)};
  std::fill_n(tiles.sums, all_queries * stride, 0.0f);
  return tiles;
}

// Keys of a head as [head_dim][block_tokens], so that neighbours in a vector are positions.
template <class T>
void store_one(const AttentionPart& part, int kv_head, int position, const float* key, const float* value) {
  const KvCacheView& cache = *part.cache;
  const auto block = part.sequence->blocks[static_cast<std::size_t>(position / cache.block_tokens)];
  const std::size_t head_elements = static_cast<std::size_t>(cache.block_tokens) * cache.head_dim;
  const int in_block = position % cache.block_tokens;
  T* keys = reinterpret_cast<T*>(cache.slot(block, part.layer)) + kv_head * head_elements;
  T* values = keys + cache.kv_heads * head_elements + static_cast<std::size_t>(in_block) * cache.head_dim;
  convert(value, cache.head_dim, reinterpret_cast<std::byte*>(values), cache.dtype);
  for (int d = 0; d < cache.head_dim; d += kLanes) {
    T lanes[kLanes];
    const int count = std::min(kLanes, cache.head_dim - d);
    store(lanes, count == kLanes ? load(key + d) : load_first(key + d, count));
    for (int i = 0; i < count; ++i) keys[(d + i) * cache.block_tokens + in_block] = lanes[i];
  }
}

void attend_heads(const AttentionPart& part, Heads heads, bool blocks, const float* qkv, std::byte* out,
                  DType out_dtype, AttentionScratch& scratch, Isa isa) {
  const AttentionShape& shape = *part.shape;
  const AttentionTiles tiles = make_tiles(part, heads, blocks, qkv, out, out_dtype, scratch);
  const float factor = shape.soft_cap > 0 ? shape.scale : shape.scale * kLog2E;
  for_each_query(part, heads, qkv_columns(shape), [&](int i, std::size_t element) {
    scale(qkv + element, shape.head_dim, factor, tiles.query + static_cast<std::size_t>(i) * tiles.stride);
  });
  isa >= Isa::kAvx512 ? attend_avx512(tiles) : attend_avx2(tiles);
  for_each_query(part, heads, shape.heads * shape.head_dim, [&](int i, std::size_t element) {
    float* sums = tiles.sums + static_cast<std::size_t>(i) * tiles.stride;
    std::byte* to = out + element * size_of(out_dtype);
    const float share = 1.0f / tiles.softmax[i].sum;
    if (out_dtype == DType::kF32) {
      scale(sums, shape.head_dim, share, reinterpret_cast<float*>(to));
    } else {
      scale(sums, shape.head_dim, share, sums);
      convert(sums, shape.head_dim, to, out_dtype);
    }
  });
}

}  // namespace

void store_keys_values(const AttentionPart& part, int kv_head, const float* qkv) {
  const AttentionShape& shape = *part.shape;
  for (int row = part.row; row < part.row + part.rows; ++row) {
    const float* key = first_key(part, kv_head, qkv) + static_cast<std::size_t>(row) * qkv_columns(shape);
    with_element(part.cache->dtype, [&]<class T>(T) {
      store_one<T>(part, kv_head, part.sequence->start + row, key, key + shape.kv_heads * shape.head_dim);
    });
  }
}

void store_keys_values(const AttentionPart& part, const float* qkv) {
  for (int head = part.kv_head; head < part.kv_head + part.kv_heads; ++head) store_keys_values(part, head, qkv);
}

bool sees_own_rows(const AttentionShape& shape, const SequenceRows& sequence, const KvCacheView& cache) {
  return !shape.causal && sequence.start == 0 && cache.dtype == DType::kF32;
}

void attend(const AttentionPart& part, const float* qkv, std::byte* out, DType out_dtype, AttentionScratch& scratch,
            Isa isa) {
  find_seen(part, scratch.seen);
  if (goes_by_blocks(part)) {
    return attend_heads(part, {part.kv_head, part.kv_heads}, /*blocks=*/true, qkv, out, out_dtype, scratch, isa);
  }
  for (int head = part.kv_head; head < part.kv_head + part.kv_heads; ++head) {
    if (part.own_rows == OwnRows::kToCache) store_keys_values(part, head, qkv);
    attend_heads(part, {head, 1}, /*blocks=*/false, qkv, out, out_dtype, scratch, isa);
  }
}

}  // namespace computron::kernels
