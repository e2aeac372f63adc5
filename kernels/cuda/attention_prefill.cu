#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpQueries = 16;
constexpr int kPiece = 8;  // elements of 16 bytes
constexpr float kLog2E = 1.4426950408889634f;
static_assert(kTileQueries == kThreads / kWarp * kWarpQueries);

// Grid: tiles of queries, heads. Keys come kKeys at a time, on a grid that begins at position 0.
//
//   V of this round     |--copy---------------|
//   K of the next                 |--copy-----------------|
//   tensor cores        |-- Q K --|  softmax  |--- P V ---|
//
// kDim: head_dim rounded up; the rest are zeros. A row of shared memory is 16 bytes longer, so that eight rows at one
// column lie in different banks.
template <class T, int kDim, int kKeys>
class TiledPrefill {
  static constexpr int kStride = kDim + kPiece;
  static constexpr int kPieces = kDim / kPiece;
  static constexpr int kScoreTiles = kKeys / 8;  // of eight keys
  static constexpr int kValueTiles = kDim / 8;   // of eight elements

 public:
  struct Shared {
    alignas(16) T queries[kTileQueries][kStride];
    alignas(16) T keys[kKeys][kStride];
    alignas(16) T values[kKeys][kStride];
    const T* places[2][kKeys];  // of this round's keys and the next's; null: there is none
  };

  __device__ TiledPrefill(const AttentionCall& p, const QueryTile& tile, bool aligned, Shared& shared)
      : p_(p),
        tile_(tile),
        shared_(shared),
        aligned_(aligned),
        head_(static_cast<int>(blockIdx.y)),
        kv_head_(head_ / p.group()),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % kWarp),
        g_(lane_ / 4),
        t_(lane_ % 4),
        warp_row_(thread_ / kWarp * kWarpQueries) {
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row_ + g_ + 8 * i;
      seen_[i] = row < tile.rows ? visible(p.rows[tile.row + row], p.shape.window) : Range{0, 0};
      max_[i] = p.sinks == nullptr ? -INFINITY : p.sinks[head_] * kLog2E;
      sum_[i] = p.sinks == nullptr ? 0.0f : 1.0f;
    }
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[n][i] = 0;
    }
  }

  __device__ void run() {
    // Rows are consecutive positions: the first sees furthest back, the last furthest ahead.
    begin_ = visible(p_.rows[tile_.row], p_.shape.window).begin;
    end_ = visible(p_.rows[tile_.row + tile_.rows - 1], p_.shape.window).end;
    const int begin = begin_ / kKeys * kKeys;
    load_queries();
    find_places(begin, 0);
    __syncthreads();
    copy(shared_.keys, shared_.places[0], 0);
    commit_copies();
    for (int first = begin, round = 0; first < end_; first += kKeys, round ^= 1) {
      copy(shared_.values, shared_.places[round], p_.cache.key_to_value());
      commit_copies();
      find_places(first + kKeys, round ^ 1);
      wait_for_copies<1>();
      __syncthreads();  // keys are there, and the next places
      float scores[kScoreTiles][4] = {};
      score(scores);
      __syncthreads();  // keys have been read
      copy(shared_.keys, shared_.places[round ^ 1], 0);
      commit_copies();
      update_softmax(first, scores);
      wait_for_copies<1>();
      __syncthreads();  // values are there
      accumulate_pv(scores);
      __syncthreads();  // values have been read
    }
    wait_for_copies<0>();
    store_rows();
  }

 private:
  __device__ void load_queries() {
    const float* from = p_.qkv + static_cast<std::size_t>(tile_.row) * p_.qkv_columns() + head_ * p_.shape.head_dim;
    for (int i = thread_; i < kTileQueries * kDim; i += kThreads) {
      const int row = i / kDim, d = i % kDim;
      const bool there = row < tile_.rows && d < p_.shape.head_dim;
      narrow(there ? from[static_cast<std::size_t>(row) * p_.qkv_columns() + d] : 0.0f, shared_.queries[row][d]);
    }
  }

  // Where the keys of positions [first, first + kKeys) lie that any row sees.
  __device__ void find_places(int first, int round) {
    if (thread_ >= kKeys) return;
    const int position = first + thread_;
    const T* place = nullptr;
    if (position >= begin_ && position < end_) {
      const int block = p_.rows[tile_.row].first_block + position / p_.cache.block_tokens;
      place = reinterpret_cast<const T*>(p_.cache.slot(block)) +
              p_.cache.key_in_slot(kv_head_, position % p_.cache.block_tokens);
    }
    shared_.places[round][thread_] = place;
  }

  // Rows of keys or, `offset` further, of values; zeros where there are none: what is not a number must not be read.
  __device__ void copy(T (&to)[kKeys][kStride], const T* const* places, std::size_t offset) {
#pragma unroll 4
    for (int i = thread_; i < kKeys * kPieces; i += kThreads) {
      const int row = i / kPieces, d = i % kPieces * kPiece;
      const T* place = places[row];
      const bool there = place != nullptr && d < p_.shape.head_dim;
      if (aligned_) {
        copy_async(&to[row][d], there ? place + offset + d : reinterpret_cast<const T*>(p_.cache.pool), there);
      } else {
        for (int e = 0; e < kPiece; ++e) {
          to[row][d + e] = there && d + e < p_.shape.head_dim ? place[offset + d + e] : T{};
        }
      }
    }
  }

  __device__ void score(float (&scores)[kScoreTiles][4]) const {
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      unsigned a[4];
      load_matrices(a, &shared_.queries[warp_row_ + lane_ % 16][k + lane_ / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        unsigned b[4];  // keys 8n.., elements k.. and k + 8..; then the next eight keys'
        load_matrices(b, &shared_.keys[8 * n + lane_ / 16 * 8 + lane_ % 8][k + lane_ / 8 % 2 * 8]);
        mma(T{}, scores[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma(T{}, scores[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // In units of log 2.
  __device__ float scaled(float score) const {
    if (p_.shape.soft_cap > 0) return capped(score * p_.shape.scale, p_.shape.soft_cap) * kLog2E;
    return score * (p_.shape.scale * kLog2E);
  }

  // Scores become weights, zero where a row sees nothing; its softmax is carried on and its output brought to the new
  // maximum. Elements 0 and 1 of a tile are of row g, 2 and 3 of row g + 8.
  __device__ void update_softmax(int first, float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float max = max_[i];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int position = first + 8 * n + 2 * t_ + j;
          float& score = scores[n][2 * i + j];
          score = position >= seen_[i].begin && position < seen_[i].end ? scaled(score) : -INFINITY;
          max = fmaxf(max, score);
        }
      }
      max = warp_max<4>(max);
      const float from = max == -INFINITY ? 0.0f : max;  // a row that has seen nothing yet
      const float factor = exp2f(max_[i] - from);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sum += scores[n][2 * i + j] = exp2f(scores[n][2 * i + j] - from);
      }
      sum_[i] = sum_[i] * factor + warp_sum<4>(sum);
      max_[i] = max;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        out_[n][2 * i] *= factor;
        out_[n][2 * i + 1] *= factor;
      }
    }
  }

  // Two tiles of weights, as they come out of a product, are the left operand of the next.
  __device__ void accumulate_pv(const float (&weights)[kScoreTiles][4]) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      const unsigned a0 = pack<T>(weights[n][0], weights[n][1]), a1 = pack<T>(weights[n][2], weights[n][3]);
      const unsigned a2 = pack<T>(weights[n + 1][0], weights[n + 1][1]);
      const unsigned a3 = pack<T>(weights[n + 1][2], weights[n + 1][3]);
#pragma unroll
      for (int d = 0; d < kValueTiles; d += 2) {
        unsigned b[4];  // elements 8d.., keys 8n.. and 8n + 8..; then the next eight elements'
        load_matrices_transposed(b, &shared_.values[8 * n + lane_ % 16][8 * d + lane_ / 16 * 8]);
        mma(T{}, out_[d], a0, a1, a2, a3, b[0], b[1]);
        mma(T{}, out_[d + 1], a0, a1, a2, a3, b[2], b[3]);
      }
    }
  }

  __device__ void store_rows() const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row_ + g_ + 8 * i;
      if (row >= tile_.rows) continue;
      const float factor = 1.0f / sum_[i];
      const std::size_t first =
          (static_cast<std::size_t>(tile_.row + row) * p_.shape.heads + head_) * p_.shape.head_dim;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int d = 8 * n + 2 * t_ + j;
          if (d < p_.shape.head_dim) store(out_[n][2 * i + j] * factor, p_.out, p_.out_dtype, first + d);
        }
      }
    }
  }

  const AttentionCall& p_;
  const QueryTile tile_;
  Shared& shared_;
  const bool aligned_;
  const int head_, kv_head_, thread_, lane_, g_, t_, warp_row_;
  int begin_ = 0, end_ = 0;  // of what the tile sees
  Range seen_[2];
  float max_[2], sum_[2];  // of rows g and g + 8; scores in units of log 2
  float out_[kValueTiles][4];
};

template <class T, int kDim, int kKeys>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 3 : 2)
    tiled_prefill_kernel(const __grid_constant__ AttentionCall p, const QueryTile* tiles, bool aligned) {
  using Kernel = TiledPrefill<T, kDim, kKeys>;
  extern __shared__ __align__(16) unsigned char memory[];
  Kernel(p, tiles[blockIdx.x], aligned, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
}

template <class T, int kDim, int kKeys>
void launch(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count) {
  const auto pool = reinterpret_cast<std::uintptr_t>(call.cache.pool);
  const bool aligned =
      (pool | call.cache.frame_bytes | call.cache.slot_bytes | call.cache.head_dim * sizeof(T)) % 16 == 0;
  constexpr int kBytes = sizeof(typename TiledPrefill<T, kDim, kKeys>::Shared);
  // More than 48 KiB of shared memory is to be had on request only; a refusal shows in the launch.
  [[maybe_unused]] static const cudaError_t asked =
      cudaFuncSetAttribute(tiled_prefill_kernel<T, kDim, kKeys>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(call.shape.heads));
  tiled_prefill_kernel<T, kDim, kKeys><<<grid, kThreads, kBytes, stream>>>(call, tiles, aligned);
}

template <class T>
void launch_for(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count) {
  if (call.shape.head_dim <= 64) return launch<T, 64, 64>(stream, call, tiles, count);
  if (call.shape.head_dim <= 128) return launch<T, 128, 64>(stream, call, tiles, count);
  launch<T, kMaxHeadDim, 32>(stream, call, tiles, count);
}

}  // namespace

void attend_prefill(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count) {
  if (count == 0) return;
  if (call.cache_dtype == DType::kBF16) {
    launch_for<BFloat16>(stream, call, tiles, count);
  } else {
    launch_for<Float16>(stream, call, tiles, count);
  }
}

}  // namespace computron::kernels::cuda
