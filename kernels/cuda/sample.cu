#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sample.h"

namespace computron::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = kColumns / kThreads;  // columns of a thread
constexpr int kSortThreads = 1024;
static_assert(SliceSample::kCandidates == kSortThreads);

// ---- the best of the threads' offers: larger first, of equals the smaller column

struct Offer {
  float value;
  int column;  // INT_MAX: none
};
constexpr int kNone = 0x7fffffff;

__device__ bool before(float a, int a_column, float b, int b_column) {
  return a > b || (a == b && a_column < b_column);
}
__device__ Offer better(const Offer& a, const Offer& b) { return before(b.value, b.column, a.value, a.column) ? b : a; }
__device__ Offer no_offer() { return {-INFINITY, kNone}; }

__device__ Offer warp_best(Offer offer) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Offer other = {__shfl_xor_sync(kAllLanes, offer.value, offset),
                         __shfl_xor_sync(kAllLanes, offer.column, offset)};
    offer = better(offer, other);
  }
  return offer;
}
// In every thread. `shared`: one a warp. Begins with a barrier, so that it can be called again with the same memory.
__device__ Offer block_best(Offer offer, Offer* shared) {
  offer = warp_best(offer);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = offer;
  __syncthreads();
  offer = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) offer = better(offer, shared[warp]);
  return offer;
}

// ---- top-k with log-sum-exp

// Column of the slice that a thread holds as its i-th.
__device__ int held_column(int i) {
  return static_cast<int>(blockIdx.x) * kColumns + i * kThreads + static_cast<int>(threadIdx.x);
}

// Grid: blocks of columns, rows × slices.
__global__ void __launch_bounds__(kThreads) top_k_columns(const __grid_constant__ TopKCall p) {
  begin_overlapped();
  __shared__ float maxima[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  __shared__ Offer offers[kThreads / kWarp];
  const int item = blockIdx.y, row = item / p.of.slices;
  const Slice slice = slice_of(p.columns, p.of, item % p.of.slices);
  if (static_cast<int>(blockIdx.x) * kColumns >= slice.real) return;
  const float* logits = p.logits + static_cast<std::size_t>(row) * p.columns + slice.first;
  TopKPart& part = p.parts[static_cast<std::size_t>(item) * p.blocks() + blockIdx.x];

  float values[kHeld];
  float largest = -INFINITY;
  int finite = 1;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const bool there = held_column(i) < slice.real;
    values[i] = there ? logits[held_column(i)] : -INFINITY;
    if (there && !isfinite(values[i])) finite = 0;
    largest = fmaxf(largest, values[i]);
  }
  largest = block_max(largest, maxima);
  finite = __syncthreads_and(finite);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (held_column(i) < slice.real && largest != -INFINITY) sum += static_cast<double>(expf(values[i] - largest));
  }
  sum = block_sum(sum, sums);

  const int wanted = min(max(p.top[row], 1), TopLogits::kTop);
  Offer last = {INFINITY, -1};
  int count = 0;
  for (; count < wanted; ++count) {
    Offer own = no_offer();
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const Offer offer = {values[i] != values[i] ? -INFINITY : values[i], held_column(i)};
      if (offer.column < slice.real && before(last.value, last.column, offer.value, offer.column)) {
        own = better(own, offer);
      }
    }
    last = block_best(own, offers);
    if (last.column == kNone) break;
    if (threadIdx.x == 0) {
      part.logits[count] = last.value;
      part.columns[count] = last.column;
    }
  }
  if (threadIdx.x != 0) return;
  part.count = count;
  part.finite = finite;
  part.max = largest;
  part.sum_exp = sum;
}

// Of all blocks of a slice, by one thread, in their order.
__device__ void log_sum_exp_of_parts(const TopKPart* parts, int count, TopLogits& out) {
  float max = -INFINITY;
  int finite = 1;
  for (int i = 0; i < count; ++i) {
    max = fmaxf(max, parts[i].max);
    finite &= parts[i].finite;
  }
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    if (parts[i].max != -INFINITY) sum += parts[i].sum_exp * exp(static_cast<double>(parts[i].max) - max);
  }
  out.max = max;
  out.sum_exp = sum;
  out.finite = static_cast<std::uint8_t>(finite);
}

__device__ void find_target(const TopKCall& p, int row, const Slice& slice, TopLogits& out) {
  const int column = p.targets[row] - p.of.first_token - slice.first;
  const bool here = p.targets[row] >= 0 && column >= 0 && column < slice.real;
  out.has_target = here;
  out.target_logit = here ? p.logits[static_cast<std::size_t>(row) * p.columns + slice.first + column] : 0.0f;
}

// Grid: rows × slices. What comes next is the best of those that lie behind the last.
__global__ void __launch_bounds__(kThreads) top_k_slices(const __grid_constant__ TopKCall p) {
  begin_overlapped();
  __shared__ Offer offers[kThreads / kWarp];
  const int item = blockIdx.x, row = item / p.of.slices;
  const Slice slice = slice_of(p.columns, p.of, item % p.of.slices);
  const TopKPart* parts = p.parts + static_cast<std::size_t>(item) * p.blocks();
  const int blocks = column_blocks(slice.real);
  TopLogits& out = p.out[item];
  const int wanted = min(min(max(p.top[row], 1), TopLogits::kTop), slice.real);
  Offer last = {INFINITY, -1};
  for (int place = 0; place < wanted; ++place) {
    Offer own = no_offer();
    for (int i = threadIdx.x; i < blocks * TopLogits::kTop; i += kThreads) {
      const TopKPart& part = parts[i / TopLogits::kTop];
      const int j = i % TopLogits::kTop;
      if (j >= part.count) continue;
      const Offer offer = {part.logits[j], part.columns[j]};
      if (before(last.value, last.column, offer.value, offer.column)) own = better(own, offer);
    }
    last = block_best(own, offers);
    if (threadIdx.x == 0) {
      out.logits[place] = last.value;
      out.tokens[place] = p.of.first_token + slice.first + last.column;
    }
  }
  if (threadIdx.x != 0) return;
  out.count = wanted;
  log_sum_exp_of_parts(parts, blocks, out);
  find_target(p, row, slice, out);
}

// ---- sample

// A block a row: the tokens that its lists name. Each token is used once; a token's biases are added one by one, by the
// thread of the first.
__global__ void __launch_bounds__(kThreads) penalise_rows(const __grid_constant__ SampleCall p) {
  begin_overlapped();
  const SampleRow& row = p.rows[blockIdx.x];
  float* scaled = p.scaled + static_cast<std::size_t>(blockIdx.x) * p.columns;
  const auto logit_of = [&](TokenId token) {
    const int column = token - p.of.first_token;
    return token >= p.of.first_token && column < p.of.real ? scaled + column : nullptr;
  };
  for (int i = row.used_begin + threadIdx.x; i < row.used_end; i += kThreads) {
    if (float* logit = logit_of(p.used[i].token)) *logit = penalised(*logit, p.used[i].generated, row);
  }
  __syncthreads();
  for (int i = row.bias_begin + threadIdx.x; i < row.bias_end; i += kThreads) {
    const TokenId token = p.bias[i].token;
    bool first = true;
    for (int j = row.bias_begin; j < i && first; ++j) first = p.bias[j].token != token;
    float* logit = logit_of(token);
    if (!first || logit == nullptr) continue;
    for (int j = i; j < row.bias_end; ++j) {
      if (p.bias[j].token == token) *logit += p.bias[j].bias;
    }
  }
  __syncthreads();
  for (int i = row.banned_begin + threadIdx.x; i < row.banned_end; i += kThreads) {
    if (float* logit = logit_of(p.banned[i])) *logit = -INFINITY;
  }
  const int words = row.allowed_end - row.allowed_begin;
  if (words == 0) return;
  __syncthreads();
  for (int column = threadIdx.x; column < p.of.real; column += kThreads) {
    const int token = p.of.first_token + column, word = token / 32;
    const bool allowed = word < words && (p.allowed[row.allowed_begin + word] >> (token % 32) & 1) != 0;
    if (!allowed) scaled[column] = -INFINITY;
  }
}

struct Score {
  double score;
  int column;  // kNone: none
};
__device__ Score better(const Score& a, const Score& b) {
  return b.score > a.score || (b.score == a.score && b.column < a.column) ? b : a;
}
__device__ Score block_best(Score score, Score* shared) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Score other = {__shfl_xor_sync(kAllLanes, score.score, offset),
                         __shfl_xor_sync(kAllLanes, score.column, offset)};
    score = better(score, other);
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = score;
  __syncthreads();
  score = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) score = better(score, shared[warp]);
  return score;
}

// Grid: blocks of columns, rows × slices.
__global__ void __launch_bounds__(kThreads) sample_columns(const __grid_constant__ SampleCall p) {
  begin_overlapped();
  __shared__ float maxima[kThreads / kWarp];
  __shared__ double sums[kThreads / kWarp];
  __shared__ Score scores[kThreads / kWarp];
  const int item = blockIdx.y, number = item / p.of.slices;
  const SampleRow& row = p.rows[number];
  const Slice slice = slice_of(p.columns, p.of, item % p.of.slices);
  if (static_cast<int>(blockIdx.x) * kColumns >= slice.real) return;
  float* scaled = p.scaled + static_cast<std::size_t>(number) * p.columns + slice.first;
  const float temperature = row.temperature > 0 ? row.temperature : 1.0f;

  float max = -INFINITY;
  for (int i = 0; i < kHeld && held_column(i) < slice.real; ++i) {
    float& value = scaled[held_column(i)];  // read by this thread alone until the kernel's end
    value = value / temperature;
    max = fmaxf(max, value);
  }
  max = block_max(max, maxima);
  double sum = 0;
  Score best = {-INFINITY, kNone};
  for (int i = 0; i < kHeld && held_column(i) < slice.real; ++i) {
    const float value = scaled[held_column(i)];
    if (max != -INFINITY) sum += static_cast<double>(expf(value - max));
    if (row.truncated >= 0) continue;
    const TokenId token = p.of.first_token + slice.first + held_column(i);
    const double own = value + (row.temperature > 0 ? noise(row.key, row.position, token) : 0.0);
    best = better(best, {own, held_column(i)});
  }
  sum = block_sum(sum, sums);
  best = block_best(best, scores);
  if (threadIdx.x != 0) return;
  p.parts[static_cast<std::size_t>(item) * p.blocks() + blockIdx.x] = {sum, best.score, max, best.column};
}

// Finds, of the keys of a slice, the one that is number `wanted` from above, eight bits at a time.
struct Selection {
  std::uint32_t threshold;
  int above;  // keys larger than it
  int equal;  // keys of its value
};

struct SortShared {
  std::uint64_t keys[SliceSample::kCandidates];
  int counts[256];
  int warp_counts[kSortThreads / kWarp];
  double sums[kSortThreads / kWarp];
  SampleResult result;
  int found;
  alignas(16) Selection selection;  // read in one piece, in which nothing else lies
};

// counts[d] = keys with this prefix (the bits of `mask`) whose next eight bits, at `shift`, are d.
__device__ void count_digits(const float* scaled, int columns, std::uint32_t prefix, std::uint32_t mask, int shift,
                             int* counts) {
  for (int i = threadIdx.x; i < 256; i += kSortThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll 4
  for (int c = threadIdx.x; c < columns; c += kSortThreads) {
    const std::uint32_t key = sort_key(scaled[c]);
    if (key != 0 && (key & mask) == prefix) atomicAdd(&counts[key >> shift & 255], 1);
  }
  __syncthreads();
}

// `wanted` is at most the number of keys.
__device__ Selection select(const float* scaled, int columns, int wanted, SortShared& shared) {
  std::uint32_t prefix = 0, mask = 0;
  int above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    count_digits(scaled, columns, prefix, mask, shift, shared.counts);
    if (threadIdx.x == 0) {
      int digit = 255;
      for (; above + shared.counts[digit] < wanted; --digit) above += shared.counts[digit];
      shared.selection = {prefix | static_cast<std::uint32_t>(digit) << shift, above, shared.counts[digit]};
    }
    __syncthreads();
    prefix = shared.selection.threshold;
    above = shared.selection.above;
    mask |= 0xffu << shift;
  }
  return shared.selection;
}

// How many are numbers.
__device__ int count_numbers(const float* scaled, int columns, SortShared& shared) {
  if (threadIdx.x == 0) shared.found = 0;
  __syncthreads();
  int own = 0;
  for (int c = threadIdx.x; c < columns; c += kSortThreads) own += sort_key(scaled[c]) != 0;
  own = warp_sum(own);
  if (threadIdx.x % kWarp == 0) atomicAdd(&shared.found, own);
  __syncthreads();
  const int found = shared.found;
  __syncthreads();
  return found;
}

// Puts the keys above the threshold into shared.keys in any order (they are sorted later), and the first `ties` of
// those equal to it, counted from the smallest column.
__device__ void collect(const float* scaled, int columns, const Selection& selection, int ties, SortShared& shared) {
  shared.keys[threadIdx.x] = ~std::uint64_t{0};
  if (threadIdx.x == 0) shared.found = 0;
  __syncthreads();
  const bool all_ties = ties == selection.equal;
  for (int c = threadIdx.x; c < columns; c += kSortThreads) {
    const std::uint32_t key = sort_key(scaled[c]);
    if (key > selection.threshold || (all_ties && key == selection.threshold)) {
      shared.keys[atomicAdd(&shared.found, 1)] = candidate_key(scaled[c], c);
    }
  }
  __syncthreads();
  if (all_ties) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int begin = 0, taken = 0; begin < columns && taken < ties; begin += kSortThreads) {
    const int c = begin + static_cast<int>(threadIdx.x);
    const bool equal = c < columns && sort_key(scaled[c]) == selection.threshold;
    const unsigned equals = __ballot_sync(kAllLanes, equal);
    if (lane == 0) shared.warp_counts[warp] = __popc(equals);
    __syncthreads();
    int place = taken + __popc(equals & ((1u << lane) - 1));
    for (int w = 0; w < kSortThreads / kWarp; ++w) {
      if (w < warp) place += shared.warp_counts[w];
      taken += shared.warp_counts[w];
    }
    if (equal && place < ties) shared.keys[selection.above + place] = candidate_key(scaled[c], c);
    __syncthreads();
  }
}

// Ascending, a thread a key (Batcher's bitonic sort).
__device__ void sort(std::uint64_t* keys) {
  for (unsigned size = 2; size <= kSortThreads; size *= 2) {
    for (unsigned stride = size / 2; stride > 0; stride /= 2) {
      const unsigned i = threadIdx.x, other = i ^ stride;
      if (other > i) {
        const bool ascending = (i & size) == 0;
        const std::uint64_t a = keys[i], b = keys[other];
        if ((a > b) == ascending) {
          keys[i] = b;
          keys[other] = a;
        }
      }
      __syncthreads();
    }
  }
}

__device__ void combine_parts(const SamplePart* parts, int count, SampleResult& out) {
  float max = -INFINITY;
  Score best = {-INFINITY, kNone};
  for (int i = 0; i < count; ++i) {
    max = fmaxf(max, parts[i].max);
    best = better(best, {parts[i].score, parts[i].column});
  }
  double sum_exp = 0;
  for (int i = 0; i < count; ++i) {
    if (parts[i].max != -INFINITY) sum_exp += parts[i].sum_exp * exp(static_cast<double>(parts[i].max) - max);
  }
  out.max = max;
  out.sum_exp = sum_exp;
  out.score = best.score;
  out.best = {best.column == kNone ? -1 : best.column, 0, 0};  // column of the slice, for now
}

// One slice of one row, for the last of the kernels.
struct SampleSlice {
  const SampleCall& p;
  const SampleRow& row;
  int place;  // slice among those of truncating rows
  Slice slice;
  const float* logits;
  const float* scaled;

  __device__ Candidate candidate(int column) const {
    return {p.of.first_token + slice.first + column, scaled[column], logits[column]};
  }
};

// The best candidates, sorted, and whether they are enough. Whole blocks only.
__device__ void offer_candidates(const SampleSlice& s, SortShared& shared) {
  const int numbers = count_numbers(s.scaled, s.slice.real, shared);
  const int wanted = min(numbers, SliceSample::kCandidates);
  if (wanted > 0) {
    const Selection selection = select(s.scaled, s.slice.real, wanted, shared);
    collect(s.scaled, s.slice.real, selection, wanted - selection.above, shared);
    sort(shared.keys);
  }
  const int mine = threadIdx.x;
  const float max = shared.result.max;
  double sum_exp = 0;
  if (mine < wanted) {
    const Candidate c = s.candidate(column_of(shared.keys[mine]));
    s.p.candidates[static_cast<std::size_t>(s.place) * SliceSample::kCandidates + mine] = c;
    sum_exp = exp(static_cast<double>(c.scaled) - max);
  }
  const double all = shared.result.sum_exp;  // before the barrier behind which thread 0 writes the result
  const double rest = all - block_sum(sum_exp, shared.sums);
  const float last = wanted > 0 ? s.scaled[column_of(shared.keys[wanted - 1])] : 0.0f;
  const bool enough = candidates_suffice(s.row, wanted, s.slice.real, last, max, all, rest);
  if (threadIdx.x == 0) {
    shared.result.candidates = wanted;
    shared.result.slice = enough ? 0 : s.slice.real;
  }
  if (enough) return;
  Candidate* out = s.p.slices + static_cast<std::size_t>(s.place) * (s.p.columns / s.p.of.slices);
  for (int c = threadIdx.x; c < s.slice.real; c += kSortThreads) out[c] = s.candidate(c);
}

// Grid: rows × slices.
__global__ void __launch_bounds__(kSortThreads) sample_slices(const __grid_constant__ SampleCall p) {
  begin_overlapped();
  __shared__ SortShared shared;
  const int item = blockIdx.x, number = item / p.of.slices, which = item % p.of.slices;
  const SampleRow& row = p.rows[number];
  const Slice slice = slice_of(p.columns, p.of, which);
  const SampleSlice s = {p,
                         row,
                         row.truncated * p.of.slices + which,
                         slice,
                         p.logits + static_cast<std::size_t>(row.row) * p.columns + slice.first,
                         p.scaled + static_cast<std::size_t>(number) * p.columns + slice.first};
  if (threadIdx.x == 0) {
    const SamplePart* parts = p.parts + static_cast<std::size_t>(item) * p.blocks();
    combine_parts(parts, column_blocks(slice.real), shared.result);
    shared.result.candidates = shared.result.slice = 0;
    if (shared.result.best.token >= 0) shared.result.best = s.candidate(shared.result.best.token);
    if (slice.real == 0) shared.result.max = 0;
  }
  __syncthreads();
  if (row.truncated >= 0) offer_candidates(s, shared);
  __syncthreads();
  if (threadIdx.x == 0) p.out[item] = shared.result;
}

}  // namespace

void top_k_log_sum_exp(CUstream_st* stream, const TopKCall& call) {
  const auto items = static_cast<unsigned>(call.rows * call.of.slices);
  if (items == 0) return;
  if (call.blocks() > 0) {
    launch_overlapped(dim3(static_cast<unsigned>(call.blocks()), items), kThreads, 0, stream, top_k_columns, call);
  }
  launch_overlapped(items, kThreads, 0, stream, top_k_slices, call);
}

void sample(CUstream_st* stream, const SampleCall& call) {
  const auto items = static_cast<unsigned>(call.count * call.of.slices);
  if (items == 0) return;
  launch_overlapped(static_cast<unsigned>(call.count), kThreads, 0, stream, penalise_rows, call);
  if (call.blocks() > 0) {
    launch_overlapped(dim3(static_cast<unsigned>(call.blocks()), items), kThreads, 0, stream, sample_columns, call);
  }
  launch_overlapped(items, kSortThreads, 0, stream, sample_slices, call);
}

}  // namespace computron::kernels::cuda
