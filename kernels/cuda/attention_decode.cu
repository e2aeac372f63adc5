#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_finish.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBatch = 8;  // keys that a thread has under way

struct Softmax {
  float max, sum;
};

// kPiece neighbouring elements, widened; in one load where they are 16 bytes.
template <class T, int kPiece>
__device__ void load_piece(const T* from, float* to) {
  union {
    uint4 bytes;
    T elements[kPiece];
  } loaded;
  if constexpr (kPiece * sizeof(T) == sizeof(uint4)) {
    loaded.bytes = *reinterpret_cast<const uint4*>(from);
  } else {
    static_assert(kPiece == 1);
    loaded.elements[0] = *from;
  }
#pragma unroll
  for (int e = 0; e < kPiece; ++e) to[e] = widen(loaded.elements[e]);
}

// Grid: splits, kv heads × tiles of kQueries query heads of each, rows.
template <class T, int kPiece, int kLanes, int kVectors, int kQueries>
class SplitKvDecode {
  static constexpr int kGroups = kThreads / kLanes;          // keys that a block looks at together
  static constexpr int kHeld = kVectors * kPiece;            // elements of a key that a thread holds
  static constexpr int kWidth = kLanes * kVectors * kPiece;  // of a key, at most

 public:
  struct Shared {
    const T* keys[kLongKvSplit];  // where those that the block sees lie
    float weights[kQueries][kLongKvSplit];
    Softmax softmax[kQueries];
    float sums[kWarps][kQueries][kWidth];
  };

  __device__ SplitKvDecode(const AttentionCall& p, const DecodeRows& part, Shared& shared)
      : p_(p),
        part_(part),
        shared_(shared),
        index_(static_cast<int>(blockIdx.z)),
        row_(part.row_ids[blockIdx.z]),
        tiles_((p.group() + kQueries - 1) / kQueries),
        kv_head_(static_cast<int>(blockIdx.y) / tiles_),
        first_query_(static_cast<int>(blockIdx.y) % tiles_ * kQueries),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        group_(static_cast<int>(threadIdx.x) / kLanes),
        seen_(in_split(visible(p.rows[row_], p.shape.window), static_cast<int>(blockIdx.x),
                       kv_split(p.rows[row_].keys))) {}

  // The whole block leaves together where it sees nothing.
  __device__ void run() {
    if (seen_.empty()) return;
    find_keys();
    __syncthreads();
    score_keys();
    __syncthreads();
    softmax();
    __syncthreads();
    accumulate_pv();
    __syncthreads();
    finish();
  }

 private:
  // Once a key, so that no load waits for a division.
  __device__ void find_keys() {
    const int first_block = p_.rows[row_].first_block;
    for (int i = threadIdx.x; i < seen_.size(); i += kThreads) {
      const int position = seen_.begin + i, block = position / p_.cache.block_tokens;
      shared_.keys[i] = reinterpret_cast<const T*>(p_.cache.slot(first_block + block)) +
                        p_.cache.key_in_slot(kv_head_, position - block * p_.cache.block_tokens);
    }
  }

  // Key i of this thread's batch that begins at the block's key `place`; at or behind seen_.size(): none.
  __device__ int key_of(int place, int i) const { return place + i * kGroups + group_; }

  // This thread's elements of up to kBatch keys or values, zero where there are none.
  __device__ void load(int place, std::size_t offset, float (&held)[kBatch][kHeld]) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int key = key_of(place, i);
      const T* from = key < seen_.size() ? shared_.keys[key] + offset : nullptr;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int element = element_of(kPiece, kLanes, v, lane_);
        float* to = held[i] + v * kPiece;
        if (from != nullptr && element < p_.shape.head_dim) {
          load_piece<T, kPiece>(from + element, to);
        } else {
#pragma unroll
          for (int e = 0; e < kPiece; ++e) to[e] = 0;
        }
      }
    }
  }

  __device__ void load_queries(float (&query)[kQueries][kHeld]) const {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      const int in_group = first_query_ + q, head = kv_head_ * p_.group() + in_group;
      const float* from = p_.qkv + static_cast<std::size_t>(row_) * p_.qkv_columns() + head * p_.shape.head_dim;
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int element = element_of(kPiece, kLanes, h / kPiece, lane_) + h % kPiece;
        const bool there = in_group < p_.group() && element < p_.shape.head_dim;
        query[q][h] = there ? from[element] * p_.shape.scale : 0.0f;
      }
    }
  }

  __device__ void score_keys() {
    float query[kQueries][kHeld], held[kBatch][kHeld];
    load_queries(query);
    for (int place = 0; place < seen_.size(); place += kBatch * kGroups) {
      load(place, 0, held);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int key = key_of(place, i);
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          float score = 0;
#pragma unroll
          for (int h = 0; h < kHeld; ++h) score = fmaf(query[q][h], held[i][h], score);
          score = warp_sum<kLanes>(score);
          if (lane_ == 0 && key < seen_.size()) shared_.weights[q][key] = capped(score, p_.shape.soft_cap);
        }
      }
    }
  }

  // A warp a query.
  __device__ void softmax() {
    const int q = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (q >= kQueries) return;
    float* weights = shared_.weights[q];
    float max = -INFINITY;
    for (int i = lane; i < seen_.size(); i += kWarp) max = fmaxf(max, weights[i]);
    max = warp_max(max);
    float sum = 0;
    for (int i = lane; i < seen_.size(); i += kWarp) sum += weights[i] = expf(weights[i] - max);
    sum = warp_sum(sum);
    if (lane == 0) shared_.softmax[q] = {max, sum};
  }

  __device__ void accumulate_pv() {
    float sums[kQueries][kHeld] = {}, held[kBatch][kHeld];
    for (int place = 0; place < seen_.size(); place += kBatch * kGroups) {
      load(place, p_.cache.key_to_value(), held);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int key = key_of(place, i);
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          const float weight = key < seen_.size() ? shared_.weights[q][key] : 0.0f;
#pragma unroll
          for (int h = 0; h < kHeld; ++h) sums[q][h] = fmaf(weight, held[i][h], sums[q][h]);
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) add_groups(q, h, sums[q][h]);
    }
  }

  // Over the groups of a warp; the warps' sums meet in finish().
  __device__ void add_groups(int q, int h, float sum) {
#pragma unroll
    for (int offset = kLanes; offset < kWarp; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    const int element = element_of(kPiece, kLanes, h / kPiece, lane_) + h % kPiece;
    if (threadIdx.x % kWarp < kLanes) shared_.sums[threadIdx.x / kWarp][q][element] = sum;
  }

  __device__ void finish() {
    for (int q = 0; q < kQueries && first_query_ + q < p_.group(); ++q) {
      const int head = kv_head_ * p_.group() + first_query_ + q;
      const Softmax softmax = shared_.softmax[q];
      float* partial = part_.partial + partial_place(index_, p_.shape.heads, head, part_.splits,
                                                     static_cast<int>(blockIdx.x), p_.shape.head_dim);
      for (int d = threadIdx.x; d < p_.shape.head_dim; d += kThreads) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += shared_.sums[warp][q][d];
        if (part_.splits == 1) {
          const std::size_t element = (static_cast<std::size_t>(row_) * p_.shape.heads + head) * p_.shape.head_dim + d;
          store(sum * (1.0f / (softmax.sum + sink_of(p_, head, softmax.max))), p_.out, p_.out_dtype, element);
        } else {
          partial[d] = sum;
        }
      }
      if (part_.splits > 1 && threadIdx.x == 0) {
        partial[softmax_in_partial(p_.shape.head_dim)] = softmax.max;
        partial[softmax_in_partial(p_.shape.head_dim) + 1] = softmax.sum;
      }
    }
  }

  const AttentionCall& p_;
  const DecodeRows& part_;
  Shared& shared_;
  const int index_, row_, tiles_, kv_head_, first_query_, lane_, group_;
  const Range seen_;
};

template <class T, int kPiece, int kLanes, int kVectors, int kQueries>
__global__ void __launch_bounds__(kThreads)
    split_kv_decode_kernel(const __grid_constant__ AttentionCall p, const __grid_constant__ DecodeRows part) {
  using Kernel = SplitKvDecode<T, kPiece, kLanes, kVectors, kQueries>;
  __shared__ typename Kernel::Shared shared;
  begin_overlapped();
  Kernel(p, part, shared).run();
}

// Grid: heads, rows. Warp w takes every kWarps-th split from the w-th on, a lane four elements of it; then the warps'
// sums are added up in order. Splits that the row sees nothing of have left nothing behind. One split alone comes out
// as it would have come out of its own block: its factor is 1.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ AttentionCall p, const __grid_constant__ DecodeRows part) {
  constexpr int kFours = kMaxHeadDim / 4 / kWarp;  // of a lane, at most
  __shared__ float4 sums[kWarps][kMaxHeadDim / 4];
  __shared__ float weights[kWarps];
  begin_overlapped();
  const int head_dim = p.shape.head_dim, head = blockIdx.x, row = part.row_ids[blockIdx.y];
  const Range seen = visible(p.rows[row], p.shape.window);
  if (seen.empty()) return;  // of no sequence
  const int length = kv_split(p.rows[row].keys), first = seen.begin / length, last = ceil_div(seen.end, length);
  const float* partials =
      part.partial + partial_place(static_cast<int>(blockIdx.y), p.shape.heads, head, part.splits, 0, head_dim);
  const auto partial = [&](int split) { return partials + static_cast<std::size_t>(split) * partial_floats(head_dim); };
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float max = -INFINITY;
  for (int s = first + lane; s < last; s += kWarp) max = fmaxf(max, partial(s)[softmax_in_partial(head_dim)]);
  max = warp_max(max);
  float4 mine[kFours] = {};
  float weight = 0;
#pragma unroll 4
  for (int s = first + warp; s < last; s += kWarps) {
    const float* const from = partial(s);
    const float2 softmax = *reinterpret_cast<const float2*>(from + softmax_in_partial(head_dim));
    const float factor = expf(softmax.x - max);
    weight = fmaf(factor, softmax.y, weight);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int d = (i * kWarp + lane) * 4;
      if (d < head_dim) add_times(mine[i], factor, *reinterpret_cast<const float4*>(from + d));
    }
  }
#pragma unroll
  for (int i = 0; i < kFours; ++i) sums[warp][i * kWarp + lane] = mine[i];
  if (lane == 0) weights[warp] = weight;
  __syncthreads();
  for (int d = 4 * threadIdx.x; d < head_dim; d += 4 * kThreads) {
    float4 sum = sums[0][d / 4];
    weight = weights[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      add_times(sum, 1.0f, sums[w][d / 4]);
      weight += weights[w];
    }
    store_four(p, row, head, d, sum, max, weight);
  }
}

template <class T, int kPiece, int kLanes, int kVectors>
void launch(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part) {
  const auto grid = [&](int queries) {
    return dim3(static_cast<unsigned>(part.splits),
                static_cast<unsigned>(call.shape.kv_heads * ceil_div(call.group(), queries)),
                static_cast<unsigned>(part.count));
  };
  if (call.group() == 1) {
    launch_overlapped(grid(1), kThreads, 0, stream, split_kv_decode_kernel<T, kPiece, kLanes, kVectors, 1>, call, part);
  } else {
    launch_overlapped(grid(4), kThreads, 0, stream, split_kv_decode_kernel<T, kPiece, kLanes, kVectors, 4>, call, part);
  }
}

template <class T>
void launch_for(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part) {
  constexpr int kPiece = 16 / sizeof(T);
  const KeyPartition partition = key_partition(sizeof(T), call.shape.head_dim, is_aligned(call.cache, sizeof(T)));
  if (partition.piece == 1) {
    launch<T, 1, 32, 8>(stream, call, part);
  } else if (partition.lanes == 8) {
    launch<T, kPiece, 8, 1>(stream, call, part);
  } else if (partition.lanes == 16) {
    launch<T, kPiece, 16, 1>(stream, call, part);
  } else if (partition.vectors == 1) {
    launch<T, kPiece, 32, 1>(stream, call, part);
  } else if constexpr (sizeof(T) == sizeof(float)) {  // two-byte keys of kMaxHeadDim need one
    launch<T, kPiece, 32, 2>(stream, call, part);
  }
}

}  // namespace

void attend_decode(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part) {
  if (part.count == 0) return;
  if (decodes_on_tensor_cores(call)) {
    attend_splits_on_tensor_cores(stream, call, part);
  } else {
    with_element(call.cache_dtype, [&]<class T>(T) { launch_for<T>(stream, call, part); });
  }
  if (part.splits == 1) return;
  const dim3 grid(static_cast<unsigned>(call.shape.heads), static_cast<unsigned>(part.count));
  launch_overlapped(grid, kThreads, 0, stream, combine_kernel, call, part);
}

}  // namespace computron::kernels::cuda
