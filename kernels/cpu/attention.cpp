// A query is one (row, head) pair; query i of a part is row i / group, head i % group of the group that shares the key
// head. Queries go through a span in tiles of 4, 2 or 1, so that each key and value is loaded once for several of them.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

constexpr int kSpan = 128;
constexpr int kScoreStride = kSpan + kLanes;  // room for the last whole step of a row of scores
constexpr int kQueryTile = 4;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Range {
  int begin, end;
  bool empty() const { return begin >= end; }
};
Range intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }
Range unite(Range a, Range b) { return {std::min(a.begin, b.begin), std::max(a.end, b.end)}; }

int group_of(const AttentionShape& shape) { return shape.heads / shape.kv_heads; }
int qkv_columns(const AttentionShape& shape) { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

// Positions that the query at `position` sees; `length` positions are stored.
Range visible(const AttentionShape& shape, int position, int length) {
  const int begin = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
  return {begin, shape.causal ? position + 1 : length};
}

// The part's place in the cache slot of `position`'s block, as elements of T: keys first, values kv_heads ×
// block_tokens × head_dim further on.
template <class T>
T* key_at(const AttentionPart& part, int position) {
  const KvCacheView& cache = *part.cache;
  const auto block = part.sequence->blocks[static_cast<std::size_t>(position / cache.block_tokens)];
  const std::size_t row = static_cast<std::size_t>(part.kv_head) * cache.block_tokens + position % cache.block_tokens;
  return reinterpret_cast<T*>(cache.slot(block, part.layer)) + row * cache.head_dim;
}
std::size_t values_offset(const KvCacheView& cache) {
  return static_cast<std::size_t>(cache.kv_heads) * cache.block_tokens * cache.head_dim;
}

// q · k for kQueries queries and the `count` rows of `keys`: scores[q][i]. Each product is one chain of eight lanes
// over head_dim and then sum_lanes. Up to seven scores behind are overwritten.
template <int kQueries, class T>
void score(const float* queries, int query_stride, const T* keys, int count, int head_dim, float* scores) {
  constexpr int kKeys = kLanes / kQueries;
  const int whole = head_dim / kLanes * kLanes;
  for (int i = 0; i < count; i += kKeys) {
    const T* key[kKeys];
    for (int j = 0; j < kKeys; ++j) key[j] = keys + static_cast<std::size_t>(std::min(i + j, count - 1)) * head_dim;
    F8 sums[kLanes];
    for (F8& sum : sums) sum = splat(0);
    const auto add_products = [&](int d, auto&& load_key) {
      F8 k[kKeys];
      for (int j = 0; j < kKeys; ++j) k[j] = load_key(key[j] + d);
      for (int q = 0; q < kQueries; ++q) {
        const F8 query = load(queries + q * query_stride + d);
        for (int j = 0; j < kKeys; ++j) sums[q * kKeys + j] = fma(query, k[j], sums[q * kKeys + j]);
      }
    };
    for (int d = 0; d < whole; d += kLanes) add_products(d, [](const T* p) { return load(p); });
    if (whole < head_dim) add_products(whole, [&](const T* p) { return load_first(p, head_dim - whole); });
    float products[kLanes];
    store(products, sum_lanes_of_each(sums));
    for (int q = 0; q < kQueries; ++q) {
      std::memcpy(scores + q * kScoreStride + i, products + q * kKeys, kKeys * sizeof(float));
    }
  }
}

// out[q][d] += Σ_i weights[q][i] values[i][d] in the order of i, over kVectors vectors of d.
template <int kQueries, int kVectors, class LoadValue, class T>
void weigh(const float* weights, const T* values, int count, int head_dim, float* out, int out_stride,
           LoadValue&& load_value) {
  F8 sums[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) sums[q][v] = load(out + q * out_stride + v * kLanes);
  }
  for (int i = 0; i < count; ++i, values += head_dim) {
    F8 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_value(values + v * kLanes);
    for (int q = 0; q < kQueries; ++q) {
      const F8 weight = splat(weights[q * kScoreStride + i]);
      for (int v = 0; v < kVectors; ++v) sums[q][v] = fma(weight, value[v], sums[q][v]);
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int v = 0; v < kVectors; ++v) store(out + q * out_stride + v * kLanes, sums[q][v]);
  }
}

template <int kQueries, class T>
void weigh_all(const float* weights, const T* values, int count, int head_dim, float* out, int out_stride) {
  constexpr int kVectors = kLanes / kQueries;
  const auto whole = [](const T* p) { return load(p); };
  int d = 0;
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    weigh<kQueries, kVectors>(weights, values + d, count, head_dim, out + d, out_stride, whole);
  }
  for (; d + kLanes <= head_dim; d += kLanes) {
    weigh<kQueries, 1>(weights, values + d, count, head_dim, out + d, out_stride, whole);
  }
  if (d == head_dim) return;
  const auto partial = [rest = head_dim - d](const T* p) { return load_first(p, rest); };
  weigh<kQueries, 1>(weights, values + d, count, head_dim, out + d, out_stride, partial);
}

void scale(float* x, int n, float factor) {
  map_lanes(
      n, x, [f = splat(factor)](F8 v) { return mul(v, f); }, x);
}

// Turns the scores of a span (positions relative to its begin) into weights, zero outside `seen`; carries the softmax
// on and brings `values` [n] to its new maximum. Whole vectors from 0: lane i always holds position i % 8.
void soften(float* scores, Range seen, int end, Softmax& softmax, float* values, int n) {
  std::fill(scores, scores + seen.begin, kMinusInfinity);
  std::fill(scores + seen.end, scores + round_up(end, kLanes), kMinusInfinity);
  F8 largest = splat(softmax.max);
  for (int i = 0; i < seen.end; i += kLanes) largest = max(load(scores + i), largest);
  const float new_max = max_lanes(largest);
  F8 sums = splat(0);
  for (int i = 0; i < round_up(end, kLanes); i += kLanes) {
    const F8 weight = exp(sub(load(scores + i), splat(new_max)));
    store(scores + i, weight);
    sums = add(sums, weight);
  }
  const float factor = _mm256_cvtss_f32(exp(splat(softmax.max - new_max)));
  softmax.sum = softmax.sum * factor + sum_lanes(sums);
  if (new_max != softmax.max) scale(values, n, factor);
  softmax.max = new_max;
}

// One part with its queries, and what has been gathered for each of them.
template <class T>
class Attention {
 public:
  Attention(const AttentionPart& part, const float* qkv, AttentionScratch& scratch)
      : part_(part),
        shape_(*part.shape),
        group_(group_of(shape_)),
        queries_(part.rows * group_),
        stride_(round_up(shape_.head_dim, kLanes)),
        length_(part.sequence->start + part.sequence->rows),
        scratch_(scratch) {
    const std::size_t floats = static_cast<std::size_t>(queries_) * stride_;
    scratch.queries.assign(floats, 0);
    scratch.values.assign(floats, 0);
    scratch.softmax.assign(static_cast<std::size_t>(queries_), {kMinusInfinity, 0});
    for (int i = 0; i < queries_; ++i) load_query(i, qkv);
  }

  void run() {
    Range seen = seen_by(0);
    for (int row = 1; row < part_.rows; ++row) seen = unite(seen, seen_by(row * group_));
    for (int begin = seen.begin / kSpan * kSpan; begin < seen.end; begin += kSpan) {
      const Range span = intersect({begin, begin + kSpan}, seen);
      int i = 0;
      for (; i + kQueryTile <= queries_; i += kQueryTile) visit<kQueryTile>(i, begin, span);
      for (; i + 2 <= queries_; i += 2) visit<2>(i, begin, span);
      if (i < queries_) visit<1>(i, begin, span);
    }
  }

  void write(std::byte* out, DType dtype) {
    const std::size_t row_elements = static_cast<std::size_t>(shape_.heads) * shape_.head_dim;
    for (int i = 0; i < queries_; ++i) {
      float* values = values_of(i);
      scale(values, shape_.head_dim, 1.0f / softmax_of(i).sum);
      const std::size_t element = batch_row(i) * row_elements + static_cast<std::size_t>(head(i)) * shape_.head_dim;
      convert(values, shape_.head_dim, out + element * size_of(dtype), dtype);
    }
  }

 private:
  int head(int i) const { return part_.kv_head * group_ + i % group_; }
  std::size_t batch_row(int i) const { return static_cast<std::size_t>(part_.sequence->row + part_.row + i / group_); }
  Range seen_by(int i) const { return visible(shape_, part_.sequence->start + part_.row + i / group_, length_); }
  float* query(int i) { return scratch_.queries.data() + static_cast<std::size_t>(i) * stride_; }
  float* values_of(int i) { return scratch_.values.data() + static_cast<std::size_t>(i) * stride_; }

  Softmax& softmax_of(int i) { return scratch_.softmax[static_cast<std::size_t>(i)]; }

  void load_query(int i, const float* qkv) {
    const float* from = qkv + batch_row(i) * qkv_columns(shape_) + static_cast<std::size_t>(head(i)) * shape_.head_dim;
    std::copy_n(from, shape_.head_dim, query(i));
    scale(query(i), shape_.head_dim, shape_.scale);
  }

  // kQueries queries from i on over the positions of `span` that they see; the span's grid begins at `grid`.
  template <int kQueries>
  void visit(int i, int grid, Range span) {
    const Range seen = intersect(span, unite(seen_by(i), seen_by(i + kQueries - 1)));
    if (seen.empty()) return;
    alignas(32) float scores[kQueries * kScoreStride];
    for_each_run(seen, [&](const T* keys, int position, int count) {
      score<kQueries>(query(i), stride_, keys, count, shape_.head_dim, scores + position - grid);
    });
    for (int q = 0; q < kQueries; ++q) soften_one(i + q, grid, seen, scores + q * kScoreStride);
    for_each_run(seen, [&](const T* keys, int position, int count) {
      weigh_all<kQueries>(scores + position - grid, keys + values_offset(*part_.cache), count, shape_.head_dim,
                          values_of(i), stride_);
    });
  }

  void soften_one(int i, int grid, Range tile, float* scores) {
    const Range seen = intersect(tile, seen_by(i));
    if (seen.empty()) return std::fill(scores + tile.begin - grid, scores + tile.end - grid, 0.0f);
    soften(scores, {seen.begin - grid, seen.end - grid}, tile.end - grid, softmax_of(i), values_of(i), stride_);
  }

  // body(keys, position, count) for each run of `range` that lies in one cache block.
  template <class Body>
  void for_each_run(Range range, Body&& body) {
    for (int position = range.begin, end; position < range.end; position = end) {
      end = std::min(round_up(position + 1, part_.cache->block_tokens), range.end);
      body(key_at<const T>(part_, position), position, end - position);
    }
  }

  const AttentionPart& part_;
  const AttentionShape& shape_;
  int group_, queries_;
  int stride_;  // of queries and values: head_dim rounded up to whole vectors, zeros behind
  int length_;  // of the sequence, these rows included
  AttentionScratch& scratch_;
};

}  // namespace

void store_keys_values(const AttentionPart& part, const float* qkv) {
  const AttentionShape& shape = *part.shape;
  const int head_dim = shape.head_dim;
  const std::size_t values = values_offset(*part.cache) * size_of(part.cache->dtype);
  for (int row = part.row; row < part.row + part.rows; ++row) {
    const float* key = qkv + static_cast<std::size_t>(part.sequence->row + row) * qkv_columns(shape) +
                       static_cast<std::size_t>(shape.heads + part.kv_head) * head_dim;
    std::byte* to = with_element(part.cache->dtype, [&]<class T>(T) {
      return reinterpret_cast<std::byte*>(key_at<T>(part, part.sequence->start + row));
    });
    convert(key, head_dim, to, part.cache->dtype);
    convert(key + shape.kv_heads * head_dim, head_dim, to + values, part.cache->dtype);
  }
}

void attend(const AttentionPart& part, const float* qkv, std::byte* out, DType out_dtype, AttentionScratch& scratch) {
  with_element(part.cache->dtype, [&]<class T>(T) {
    Attention<T> attention(part, qkv, scratch);
    attention.run();
    attention.write(out, out_dtype);
  });
}

}  // namespace computron::kernels
