#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_finish.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWarpKeys = 16;
constexpr int kRoundKeys = kWarps * kWarpKeys;
constexpr int kQueries = 8;  // of a block
constexpr int kPiece = 8;    // elements of 16 bytes
static_assert(kThreads >= 2 * kMaxHeadDim / kPiece, "a thread a piece of a key and a value");
static_assert(kKvSplit % kRoundKeys == 0 && kLongKvSplit % kRoundKeys == 0);

// A float32 as a sum of two-byte numbers: of float16, whose exponents are few, the second part is held 2048 times as
// large.
template <class T>
struct Parts;
template <>
struct Parts<Float16> {
  static constexpr int kCount = 2;
  static constexpr float kSecond = 1.0f / 2048;
};
template <>
struct Parts<BFloat16> {
  static constexpr int kCount = 3;
  static constexpr float kSecond = 1;
};
template <class T>
__device__ void cut(float x, T (&parts)[Parts<T>::kCount]) {
#pragma unroll
  for (int i = 0; i < Parts<T>::kCount; ++i) {
    narrow(x, parts[i]);
    x = (x - widen(parts[i])) * (1 / Parts<T>::kSecond);
  }
}

// Grid: splits, kv heads × tiles of kQueries query heads of each, rows.
//
// A warp takes 16 keys a round by itself, from device memory into the operands of products; the warps meet at the end.
// A product's 16 rows are 8 queries, and the second parts of the same 8: each lane adds up what it holds of rows g and
// g + 8 (g = lane / 4, t = lane % 4), and so neither queries nor weights are rounded to two bytes. Third parts (of
// bfloat16) take products of their own.
//
// A product's depth is summed up in any order, so lanes hold 16 bytes of a key or value, not the two elements here and
// there that "row" and "column" in the PTX ISA suggest:
//
//   Q K   lane (g, t) holds elements 32 j + 8 t.. of key g, and of query g: the depth of products 2 j and 2 j + 1
//   P V   lane (g, t) holds elements 64 j + 8 g.. of keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9: column g of products 8 j.. is
//         element 64 j + 8 g + e for the e-th
template <class T, int kDim>
class TensorDecode {
  static constexpr int kParts = Parts<T>::kCount;
  static constexpr int kKeyPieces = kDim / 32;    // of a key, that a lane holds
  static constexpr int kValuePieces = kDim / 64;  // of a value
  static constexpr int kStride = kDim + 4;
  static constexpr bool kBothAhead = kDim <= 128;  // registers for values while keys are under way

 public:
  struct Shared {
    uint4 queries[kKeyPieces][kParts - 1][2][kWarp];  // left operands of products: of two parts, of the third
    alignas(16) float out[kWarps][kQueries][kStride];
    float max[kWarps][kQueries], sum[kWarps][kQueries];
  };

  __device__ TensorDecode(const AttentionCall& p, const DecodeRows& part, Shared& shared)
      : p_(p),
        part_(part),
        shared_(shared),
        row_(part.row_ids[blockIdx.z]),
        kv_head_(static_cast<int>(blockIdx.y) / tiles()),
        first_query_(static_cast<int>(blockIdx.y) % tiles() * kQueries),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        first_block_(p.rows[row_].first_block),
        seen_(in_split(visible(p.rows[row_], p.shape.window), static_cast<int>(blockIdx.x),
                       kv_split(p.rows[row_].keys))) {}

  // The whole block leaves together where it sees nothing. Most have one round, which begins with all that it loads.
  __device__ void run() {
    if (seen_.empty()) return;
    if (part_.store && exists(p_.rows[row_].position)) {
      store_own();
      __syncthreads();
    }
    const int begin = seen_.begin / kRoundKeys * kRoundKeys;  // on a grid that begins at position 0
    int first = begin + warp_ * kWarpKeys;
    const T* place = find_key(first);
    load_keys(first, place);
    if constexpr (kBothAhead) load_values(first, place);
    cut_queries();
    __syncthreads();
    attend<true>(first, place);
    for (int round = begin + kRoundKeys; round < seen_.end; round += kRoundKeys) {
      first = round + warp_ * kWarpKeys;
      place = find_key(first);
      load_keys(first, place);
      attend<false>(first, place);
    }
    write_down();
    __syncthreads();
    finish();
  }

 private:
  __device__ int tiles() const { return (p_.group() + kQueries - 1) / kQueries; }
  __device__ int queries() const {
    const int left = p_.group() - first_query_;
    return left < kQueries ? left : kQueries;
  }
  __device__ int head(int query) const { return kv_head_ * p_.group() + first_query_ + query; }

  // The row's key and value: a thread a piece. Blocks of other query heads write the same.
  __device__ void store_own() const {
    const auto body = StoreKeysValues<T, kPiece>::of(p_);
    T* const place = body.place(row_);
    const int pieces = p_.shape.head_dim / kPiece, i = static_cast<int>(threadIdx.x);
    if (i < 2 * pieces) body(row_, place, kv_head_ + i / pieces * p_.cache.kv_heads, i % pieces);
  }

  __device__ bool exists(int position) const { return position >= seen_.begin && position < seen_.end; }
  // Where a lane's key of 16 lies, or, so that no lane goes another way, the nearest that the block sees.
  __device__ const T* find_key(int first) const {
    const int wanted = first + lane_ % kWarpKeys, last = seen_.end - 1;
    const int position = wanted < seen_.begin ? seen_.begin : wanted > last ? last : wanted;
    const int block = position / p_.cache.block_tokens;
    return reinterpret_cast<const T*>(p_.cache.slot(first_block_ + block)) +
           p_.cache.key_in_slot(kv_head_, position - block * p_.cache.block_tokens);
  }
  // What the lane that has found key `key` of the warp says.
  __device__ static const T* place_of(const T* place, int key) {
    const auto number = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(place));
    return reinterpret_cast<const T*>(static_cast<std::uintptr_t>(__shfl_sync(kAllLanes, number, key)));
  }
  // Zeros where there is nothing: what is not a number must not be read.
  __device__ uint4 load(const T* place, std::size_t offset, int element, bool exists) const {
    uint4 piece;
    load_once(place + offset + element, exists && element < p_.shape.head_dim, piece);
    return piece;
  }
  __device__ void load_keys(int first, const T* places) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 8 * i + lane_ / 4;
      const T* const place = place_of(places, key);
#pragma unroll
      for (int j = 0; j < kKeyPieces; ++j)
        keys_[i][j] = load(place, 0, 32 * j + lane_ % 4 * kPiece, exists(first + key));
    }
  }
  __device__ void load_values(int first, const T* places) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      const T* const place = place_of(places, key);
#pragma unroll
      for (int j = 0; j < kValuePieces; ++j) {
        values_[i][j] = load(place, p_.cache.key_to_value(), 64 * j + lane_ / 4 * kPiece, exists(first + key));
      }
    }
  }

  // A warp a piece of the depth.
  __device__ void cut_queries() {
    const int g = lane_ / 4;
    for (int j = warp_; j < kKeyPieces; j += kWarps) {
      const int element = 32 * j + lane_ % 4 * kPiece;
      const bool there = g < queries() && element < p_.shape.head_dim;
      const float* from =
          p_.qkv + static_cast<std::size_t>(row_) * p_.qkv_columns() + head(g) * p_.shape.head_dim + element;
      union {
        uint4 bytes;
        T elements[kPiece];
      } pieces[kParts];
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        T parts[kParts];
        cut(there ? from[e] * p_.shape.scale : 0.0f, parts);
#pragma unroll
        for (int i = 0; i < kParts; ++i) pieces[i].elements[e] = parts[i];
      }
#pragma unroll
      for (int i = 0; i < kParts - 1; ++i) {
        const uint4 upper = pieces[2 * i].bytes, lower = i == 0 ? pieces[1].bytes : uint4{0, 0, 0, 0};
        shared_.queries[j][i][0][lane_] = {upper.x, lower.x, upper.y, lower.y};
        shared_.queries[j][i][1][lane_] = {upper.z, lower.z, upper.w, lower.w};
      }
    }
  }

  // Sixteen keys.
  template <bool kFirst>
  __device__ void attend(int first, const T* places) {
    float weights[2][2];
    score(first, weights);
    if constexpr (!kFirst || !kBothAhead) load_values(first, places);
    update_softmax<kFirst>(weights);
    accumulate_pv<kFirst>(weights);
  }

  // Of query g with keys 8 i + 2 t + {0, 1} of the warp's; minus infinity where it sees nothing.
  __device__ void score(int first, float (&scores)[2][2]) const {
    float sums[2][4] = {};
#pragma unroll
    for (int j = 0; j < kKeyPieces; ++j) {
#pragma unroll
      for (int n = 0; n < kParts - 1; ++n) {
        const uint4 a = shared_.queries[j][n][0][lane_], b = shared_.queries[j][n][1][lane_];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 key = keys_[i][j];
          mma(T{}, sums[i], a.x, a.y, a.z, a.w, key.x, key.y);
          mma(T{}, sums[i], b.x, b.y, b.z, b.w, key.z, key.w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int position = first + 8 * i + lane_ % 4 * 2 + k;
        scores[i][k] = exists(position) ? whole(sums[i], k) : -INFINITY;
      }
    }
    if (p_.shape.soft_cap > 0) cap(scores);
  }
  // Those of keys that are not there stay as they are.
  __device__ void cap(float (&scores)[2][2]) const {
#pragma unroll
    for (auto& of_tile : scores) {
#pragma unroll
      for (float& score : of_tile) score = score == -INFINITY ? score : capped(score, p_.shape.soft_cap);
    }
  }
  // Column k of a product, of rows g and g + 8.
  __device__ static float whole(const float (&sums)[4], int k) { return fmaf(sums[k + 2], Parts<T>::kSecond, sums[k]); }

  // Scores become weights; the softmax of query g is carried on and its output brought to the new maximum.
  template <bool kFirst>
  __device__ void update_softmax(float (&scores)[2][2]) {
    const float most = fmaxf(fmaxf(scores[0][0], scores[0][1]), fmaxf(scores[1][0], scores[1][1]));
    const float max = kFirst ? warp_max<4>(most) : fmaxf(max_, warp_max<4>(most));
    const float from = max == -INFINITY ? 0.0f : max;  // nothing has been seen yet
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) sum += scores[i][k] = expf(scores[i][k] - from);
    }
    sum = warp_sum<4>(sum);
    if constexpr (!kFirst) {
      const float factor = expf(max_ - from);
      sum = fmaf(sum_, factor, sum);
      for_each_product([factor](float(&product)[4]) {
#pragma unroll
        for (float& of_lane : product) of_lane *= factor;
      });
    }
    sum_ = sum;
    max_ = max;
  }
  template <class Body>
  __device__ void for_each_product(const Body& body) {
#pragma unroll
    for (auto& product : out_) body(product);
  }

  template <bool kFirst>
  __device__ void accumulate_pv(const float (&weights)[2][2]) {
    if constexpr (kFirst) {
      for_each_product([](float(&product)[4]) {
#pragma unroll
        for (float& of_lane : product) of_lane = 0;
      });
    }
    unsigned a[2][kParts];  // of keys 2 t.., of keys 2 t + 8..
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      T low[kParts], high[kParts];
      cut(weights[i][0], low);
      cut(weights[i][1], high);
#pragma unroll
      for (int n = 0; n < kParts; ++n) a[i][n] = low[n].bits | static_cast<unsigned>(high[n].bits) << 16;
    }
#pragma unroll
    for (int j = 0; j < kValuePieces; ++j) {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) {
        // Element e of two keys in a register.
        const unsigned halves = e % 2 == 0 ? 0x5410 : 0x7632;
        const unsigned b0 = __byte_perm(word(values_[0][j], e / 2), word(values_[1][j], e / 2), halves);
        const unsigned b1 = __byte_perm(word(values_[2][j], e / 2), word(values_[3][j], e / 2), halves);
        mma(T{}, out_[kPiece * j + e], a[0][0], a[0][1], a[1][0], a[1][1], b0, b1);
        if constexpr (kParts == 3) mma(T{}, out_[kPiece * j + e], a[0][2], 0, a[1][2], 0, b0, b1);
      }
    }
  }
  __device__ static unsigned word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

  // What this warp has seen. Lane (g, t) holds elements 64 j + 16 t.. of query g.
  __device__ void write_down() {
    const int g = lane_ / 4, t = lane_ % 4;
    if (g >= queries()) return;
    if (t == 0) {
      shared_.max[warp_][g] = max_;
      shared_.sum[warp_][g] = sum_;
    }
#pragma unroll
    for (int j = 0; j < kValuePieces; ++j) {
#pragma unroll
      for (int e = 0; e < 2 * kPiece; e += 4) {
        const auto value = [&](int i) { return whole(out_[kPiece * j + (e + i) % kPiece], e / kPiece); };
        const float4 four{value(0), value(1), value(2), value(3)};
        *reinterpret_cast<float4*>(&shared_.out[warp_][g][64 * j + 16 * t + e]) = four;
      }
    }
  }

  // Four elements a thread.
  __device__ void finish() const {
    const int split = static_cast<int>(blockIdx.x), index = static_cast<int>(blockIdx.z);
    for (int i = static_cast<int>(threadIdx.x); i < queries() * (kDim / 4); i += kThreads) {
      const int query = i / (kDim / 4), d = i % (kDim / 4) * 4;
      if (d >= p_.shape.head_dim) continue;
      float max = shared_.max[0][query];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) max = fmaxf(max, shared_.max[w][query]);
      float4 sums{0, 0, 0, 0};
      float weights = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float factor = expf(shared_.max[w][query] - max);
        add_times(sums, factor, *reinterpret_cast<const float4*>(&shared_.out[w][query][d]));
        weights = fmaf(shared_.sum[w][query], factor, weights);
      }
      if (part_.splits == 1) {
        store_four(p_, row_, head(query), d, sums, max, weights);
        continue;
      }
      float* partial =
          part_.partial + partial_place(index, p_.shape.heads, head(query), part_.splits, split, p_.shape.head_dim);
      *reinterpret_cast<float4*>(partial + d) = sums;
      if (d == 0) *reinterpret_cast<float2*>(partial + softmax_in_partial(p_.shape.head_dim)) = float2{max, weights};
    }
  }

  const AttentionCall& p_;
  const DecodeRows& part_;
  Shared& shared_;
  const int row_, kv_head_, first_query_, lane_, warp_, first_block_;
  const Range seen_;
  uint4 keys_[2][kKeyPieces], values_[4][kValuePieces];
  float max_, sum_;  // of query g
  float out_[kDim / 8][4];
};

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1)
    tensor_decode_kernel(const __grid_constant__ AttentionCall p, const __grid_constant__ DecodeRows part) {
  using Kernel = TensorDecode<T, kDim>;
  extern __shared__ __align__(16) unsigned char memory[];
  begin_overlapped();
  Kernel(p, part, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
}

template <class T, int kDim>
void launch(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part) {
  constexpr int kBytes = sizeof(typename TensorDecode<T, kDim>::Shared);
  static_assert(kBytes <= kLeastSharedBytes);
  [[maybe_unused]] static const bool asked =
      ask_for_shared(tensor_decode_kernel<T, kDim>, "split-KV decode attention", kBytes);
  const dim3 grid(static_cast<unsigned>(part.splits),
                  static_cast<unsigned>(call.shape.kv_heads * ceil_div(call.group(), kQueries)),
                  static_cast<unsigned>(part.count));
  launch_overlapped(grid, kThreads, kBytes, stream, tensor_decode_kernel<T, kDim>, call, part);
}

template <class T>
void launch_for(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part) {
  if (call.shape.head_dim <= 64) return launch<T, 64>(stream, call, part);
  if (call.shape.head_dim <= 128) return launch<T, 128>(stream, call, part);
  launch<T, kMaxHeadDim>(stream, call, part);
}

}  // namespace

void attend_splits_on_tensor_cores(CUstream_st* stream, const AttentionCall& call, const DecodeRows& part) {
  if (call.cache_dtype == DType::kBF16) {
    launch_for<BFloat16>(stream, call, part);
  } else {
    launch_for<Float16>(stream, call, part);
  }
}

}  // namespace computron::kernels::cuda
