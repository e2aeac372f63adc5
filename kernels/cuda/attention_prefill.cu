#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kTileRows = 16;  // of a product
constexpr int kPiece = 8;      // elements of 16 bytes
constexpr float kLog2E = 1.4426950408889634f;

// Grid: tiles of queries × heads, a tile's heads side by side. Keys come kKeys at a time, on a grid that begins at
// position 0.
//
//   K and V of this round    |-- Q K --|  softmax  |-- P V --|
//   K and V of the next      |--copy-------------------------|   into the other buffer
//   where the others lie     |--slot, frame, block: a step of three rounds---|
//
// With one barrier a round: what was copied is there, and what is copied over has been read. A warp holds one tile of
// rows: with two, half as much is read of shared memory for a product, but half as many warps hide each other's
// latencies, and an H100 takes 8 % longer (2048 rows, 32 heads of 128).
//
// kDim: head_dim rounded up; the rest are zeros. kKeys: of a round. A row of shared memory is 16 bytes longer, so that
// eight rows at one column lie in different banks.
template <class T, int kDim, int kKeys>
class TiledPrefill {
  static constexpr int kStride = kDim + kPiece;
  static constexpr int kPieces = kDim / kPiece;
  static constexpr int kScoreTiles = kKeys / 8;  // of eight keys
  static constexpr int kValueTiles = kDim / 8;   // of eight elements

 public:
  static constexpr int kThreads = kTileQueries / kTileRows * kWarp;
  static_assert(kThreads >= kKeys && kThreads % kPieces == 0 && kKeys * kPieces % kThreads == 0);

  struct Shared {
    alignas(16) T queries[kTileQueries][kStride];
    alignas(16) T keys[2][kKeys][kStride];
    alignas(16) T values[2][kKeys][kStride];
    const T* places[2][kKeys];  // of the keys of a round; null: there is none
  };
  static_assert(sizeof(Shared) == prefill_shared_bytes(kDim, kKeys));

  __device__ TiledPrefill(const AttentionCall& p, const QueryTile& tile, int head, bool aligned, Shared& shared)
      : p_(p),
        shared_(shared),
        first_row_(tile.row),
        rows_(tile.rows),
        first_(p.rows[tile.row]),
        head_(head),
        aligned_(aligned),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % kWarp),
        warp_row_(thread_ / kWarp * kTileRows),
        begin_(seen_by(0).begin),
        end_(seen_by(tile.rows - 1).end) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max_[i] = p.sinks == nullptr ? -INFINITY : p.sinks[head_] * kLog2E;
      sum_[i] = p.sinks == nullptr || lane_ % 4 != 0 ? 0.0f : 1.0f;
    }
  }

  __device__ void run() {
    const int begin = begin_ / kKeys * kKeys;
    if (thread_ < kKeys) begin_lookups(begin);
    __syncthreads();
    copy(0);
    aligned_ ? load_queries() : load_queries_by_element();
    for (int first = begin, round = 0; first < end_; first += kKeys, round ^= 1) {
      wait_for_copies<0>();
      __syncthreads();
      if (first + kKeys < end_) copy(round ^ 1);
      if (thread_ < kKeys) look_up(first + 2 * kKeys, round);
      attend(first, round);
    }
    store_rows();
  }

 private:
  // Rows are consecutive positions: the first sees furthest back, the last furthest ahead.
  __device__ Range seen_by(int row) const {
    const int position = first_.position + row;
    return visible({position, p_.shape.causal ? position + 1 : first_.keys, 0}, p_.shape.window);
  }

  // ---- where keys lie. A load's result is wanted a round later, so that nobody waits for it: round r writes down the
  // ---- places of round r + 2, asks for the frames of r + 3 and for the blocks of r + 4.

  __device__ bool exists(int position) const { return position >= begin_ && position < end_; }
  __device__ void load_block(int position) {
    if (exists(position)) block_ = p_.cache.blocks[first_.first_block + position / p_.cache.block_tokens];
  }
  __device__ void load_frame(int position) {
    slot_ = p_.cache.slot_number(block_);
    if (exists(position)) frame_ = p_.cache.frames[slot_ / p_.cache.slots_per_frame];
  }
  __device__ void write_place(int position, int to) const {
    const T* place = nullptr;
    if (exists(position)) {
      place = reinterpret_cast<const T*>(p_.cache.slot_in(frame_, slot_)) +
              p_.cache.key_in_slot(head_ / p_.group(), position % p_.cache.block_tokens);
    }
    shared_.places[to][thread_] = place;
  }
  __device__ void look_up(int first, int to) {
    const int position = first + thread_;
    write_place(position, to);
    load_frame(position + kKeys);
    load_block(position + 2 * kKeys);
  }
  __device__ void begin_lookups(int first) {
    const int position = first + thread_;
    load_block(position);
    load_frame(position);
    load_block(position + kKeys);
    look_up(first, 0);
    look_up(first + kKeys, 1);
  }

  // ---- copies

  // Of keys and values; zeros where there are none: what is not a number must not be read.
  __device__ void copy(int to) {
    aligned_ ? copy_pieces(to) : copy_elements(to);
    commit_copies();
  }
  __device__ void copy_pieces(int to) {
    const int first = thread_ / kPieces, d = thread_ % kPieces * kPiece;
    const std::size_t to_value = p_.cache.key_to_value();
    const T* const nothing = reinterpret_cast<const T*>(p_.cache.pool);
#pragma unroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int row = first + i * (kThreads / kPieces);
      const T* place = shared_.places[to][row];
      const bool there = place != nullptr && d < p_.shape.head_dim;
      const T* from = there ? place + d : nothing;
      copy_async(&shared_.keys[to][row][d], from, there);
      copy_async(&shared_.values[to][row][d], there ? from + to_value : from, there);
    }
  }
  __device__ void copy_elements(int to) {
    const std::size_t to_value = p_.cache.key_to_value();
#pragma unroll 1
    for (int i = thread_; i < kKeys * kDim; i += kThreads) {
      const int row = i / kDim, d = i % kDim;
      const T* place = shared_.places[to][row];
      const bool there = place != nullptr && d < p_.shape.head_dim;
      shared_.keys[to][row][d] = there ? place[d] : T{};
      shared_.values[to][row][d] = there ? place[to_value + d] : T{};
    }
  }

  __device__ const float* query(int row) const {
    return p_.qkv + static_cast<std::size_t>(first_row_ + row) * p_.qkv_columns() + head_ * p_.shape.head_dim;
  }
  __device__ void load_queries() {
    const int d = thread_ % kPieces * kPiece;
#pragma unroll 4
    for (int row = thread_ / kPieces; row < kTileQueries; row += kThreads / kPieces) {
      float4 low{0, 0, 0, 0}, high{0, 0, 0, 0};
      if (row < rows_ && d < p_.shape.head_dim) {
        const auto* from = reinterpret_cast<const float4*>(query(row) + d);
        low = *from;
        high = from[1];
      }
      const uint4 piece{pack<T>(low.x, low.y), pack<T>(low.z, low.w), pack<T>(high.x, high.y), pack<T>(high.z, high.w)};
      T* const to = &shared_.queries[row][d];
      *reinterpret_cast<uint4*>(to) = piece;
    }
  }
  __device__ void load_queries_by_element() {
    for (int i = thread_; i < kTileQueries * kDim; i += kThreads) {
      const int row = i / kDim, d = i % kDim;
      const bool there = row < rows_ && d < p_.shape.head_dim;
      narrow(there ? query(row)[d] : 0.0f, shared_.queries[row][d]);
    }
  }

  // ---- a round

  // Rounds of which a row sees nothing leave it as it is, so a warp skips those of which no row sees anything.
  __device__ void attend(int first, int round) {
    if (warp_row_ >= rows_) return;
    const Range front = seen_by(warp_row_), back = seen_by(warp_row_ + kTileRows - 1);
    if (first + kKeys <= front.begin || first >= back.end) return;
    float scores[kScoreTiles][4] = {};
    score(round, scores);
    if (p_.shape.soft_cap > 0) cap(scores);
    if (first < back.begin || first + kKeys > front.end) mask(first, scores);
    update_softmax(scores);
    accumulate_pv(round, scores);
  }

  __device__ void score(int round, float (&scores)[kScoreTiles][4]) const {
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      unsigned a[4];
      load_matrices(a, &shared_.queries[warp_row_ + lane_ % 16][k + lane_ / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        unsigned b[4];  // keys 8n.., elements k.. and k + 8..; then the next eight keys'
        load_matrices(b, &shared_.keys[round][8 * n + lane_ / 16 * 8 + lane_ % 8][k + lane_ / 8 % 2 * 8]);
        mma(T{}, scores[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma(T{}, scores[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // What brings a score to units of log 2; a capped one has been scaled.
  __device__ float unit() const { return p_.shape.soft_cap > 0 ? kLog2E : p_.shape.scale * kLog2E; }
  __device__ void cap(float (&scores)[kScoreTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (float& score : scores[n]) score = capped(score * p_.shape.scale, p_.shape.soft_cap);
    }
  }

  // Elements 0 and 1 of a tile are of row g = lane / 4, 2 and 3 of row g + 8; of keys 2t and 2t + 1, t = lane % 4.
  __device__ void mask(int first, float (&scores)[kScoreTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Range seen = seen_by(warp_row_ + 8 * i + lane_ / 4);
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int position = first + 8 * n + lane_ % 4 * 2 + j;
          if (position < seen.begin || position >= seen.end) scores[n][2 * i + j] = -INFINITY;
        }
      }
    }
  }

  // Scores become weights; each row's softmax is carried on and its output brought to the new maximum. Sums are of what
  // this lane sees until the end.
  __device__ void update_softmax(float (&scores)[kScoreTiles][4]) {
    const float unit = this->unit();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float max = -INFINITY;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) max = fmaxf(max, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      max = fmaxf(max_[i], warp_max<4>(max) * unit);
      const float from = max == -INFINITY ? 0.0f : max;  // a row that has seen nothing yet
      const float factor = exp2_or_zero(max_[i] - from);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = scores[n][2 * i + j];
          sum += score = exp2_or_zero(fmaf(score, unit, -from));
        }
      }
      sum_[i] = fmaf(sum_[i], factor, sum);
      max_[i] = max;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        out_[n][2 * i] *= factor;
        out_[n][2 * i + 1] *= factor;
      }
    }
  }

  // Two tiles of weights, as they come out of a product, are the left operand of the next.
  __device__ void accumulate_pv(int round, const float (&weights)[kScoreTiles][4]) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
      unsigned a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &weights[n + i / 2][i % 2 * 2];
        a[i] = pack_weights(T{}, pair[0], pair[1]);
      }
#pragma unroll
      for (int d = 0; d < kValueTiles; d += 2) {
        unsigned b[4];  // elements 8d.., keys 8n.. and 8n + 8..; then the next eight elements'
        load_matrices_transposed(b, &shared_.values[round][8 * n + lane_ % 16][8 * d + lane_ / 16 * 8]);
        mma(T{}, out_[d], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma(T{}, out_[d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  __device__ void store_rows() const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row_ + 8 * i + lane_ / 4;
      const float factor = 1.0f / warp_sum<4>(sum_[i]);
      if (row >= rows_) continue;
      const std::size_t first =
          (static_cast<std::size_t>(first_row_ + row) * p_.shape.heads + head_) * p_.shape.head_dim;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        const int d = 8 * n + lane_ % 4 * 2;
        store_pair(out_[n][2 * i] * factor, out_[n][2 * i + 1] * factor, first + d, d);
      }
    }
  }
  // Elements d and d + 1 of a head, where it has them; in one piece where that is aligned.
  __device__ void store_pair(float low, float high, std::size_t element, int d) const {
    if (aligned_ && d < p_.shape.head_dim && p_.out_dtype != DType::kF32) {
      const unsigned pair = p_.out_dtype == DType::kBF16 ? pack<BFloat16>(low, high) : pack<Float16>(low, high);
      *reinterpret_cast<unsigned*>(p_.out + 2 * element) = pair;
      return;
    }
    if (d < p_.shape.head_dim) store(low, p_.out, p_.out_dtype, element);
    if (d + 1 < p_.shape.head_dim) store(high, p_.out, p_.out_dtype, element + 1);
  }

  const AttentionCall& p_;
  Shared& shared_;
  const int first_row_, rows_;
  const AttentionRow first_;
  const int head_;
  const bool aligned_;
  const int thread_, lane_, warp_row_;
  const int begin_, end_;               // of what the tile sees
  std::uint32_t block_ = 0, slot_ = 0;  // of the round after the next but one; of the next but one
  FrameId frame_ = 0;                   // of slot_
  float max_[2], sum_[2];               // of rows g and g + 8; scores in units of log 2
  float out_[kValueTiles][4] = {};
};

template <class T, int kDim, int kKeys>
__global__ void __launch_bounds__(TiledPrefill<T, kDim, kKeys>::kThreads, kDim <= 128 ? 2 : 1)
    tiled_prefill_kernel(const __grid_constant__ AttentionCall p, const QueryTile* tiles, bool aligned) {
  using Kernel = TiledPrefill<T, kDim, kKeys>;
  extern __shared__ __align__(16) unsigned char memory[];
  begin_overlapped();
  const int block = static_cast<int>(blockIdx.x);
  Kernel(p, tiles[block / p.shape.heads], block % p.shape.heads, aligned,
         *reinterpret_cast<typename Kernel::Shared*>(memory))
      .run();
}

template <class T, int kDim, int kKeys>
void launch(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count) {
  constexpr auto* kKernel = tiled_prefill_kernel<T, kDim, kKeys>;
  constexpr int kThreads = TiledPrefill<T, kDim, kKeys>::kThreads, kBytes = prefill_shared_bytes(kDim, kKeys);
  [[maybe_unused]] static const bool asked = ask_for_shared(kKernel, "tiled prefill attention", kBytes);
  const auto rows = reinterpret_cast<std::uintptr_t>(call.qkv) | reinterpret_cast<std::uintptr_t>(call.out);
  const bool aligned = is_aligned(call.cache, sizeof(T)) && rows % 16 == 0;
  const dim3 grid(static_cast<unsigned>(count) * static_cast<unsigned>(call.shape.heads));
  launch_overlapped(grid, kThreads, kBytes, stream, kKernel, call, tiles, aligned);
}

template <class T>
void launch_for(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count, int keys) {
  const bool few = keys == kFewTileKeys;
  if (call.shape.head_dim <= 64) return launch<T, 64, kTileKeys>(stream, call, tiles, count);
  if (call.shape.head_dim <= 128) {
    return few ? launch<T, 128, kFewTileKeys>(stream, call, tiles, count)
               : launch<T, 128, kTileKeys>(stream, call, tiles, count);
  }
  few ? launch<T, kMaxHeadDim, kFewTileKeys>(stream, call, tiles, count)
      : launch<T, kMaxHeadDim, kTileKeys>(stream, call, tiles, count);
}

}  // namespace

void attend_prefill(CUstream_st* stream, const AttentionCall& call, const QueryTile* tiles, int count, int keys) {
  if (count == 0) return;
  if (call.cache_dtype == DType::kBF16) {
    launch_for<BFloat16>(stream, call, tiles, count, keys);
  } else {
    launch_for<Float16>(stream, call, tiles, count, keys);
  }
}

}  // namespace computron::kernels::cuda
