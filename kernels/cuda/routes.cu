#include "kernels/cuda/experts.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

// ---- a warp chooses a row's experts

struct Choice {
  float logit;
  int expert;

  // Earlier in the order of choices.
  __device__ bool before(const Choice& other) const {
    return logit > other.logit || (logit == other.logit && expert < other.expert);
  }
};

__device__ Choice warp_first(Choice mine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Choice other{__shfl_xor_sync(kAllLanes, mine.logit, offset), __shfl_xor_sync(kAllLanes, mine.expert, offset)};
    if (other.before(mine)) mine = other;
  }
  return mine;
}

// Σ exp(logit - largest) over a row's logits.
__device__ float warp_sum_exp(const float* logits, int count, float largest, int lane) {
  float sum = 0;
  for (int i = lane; i < count; i += kWarp) sum += expf(logits[i] - largest);
  return warp_sum(sum);
}

// Choices are found one by one: the first that comes behind the one before. Where logits are no numbers there may be
// none left: then the row's weights are no numbers either, and it has chosen one expert at least, so that whoever looks
// at it sees that. Until they are put in order, choices lie where places will.
__device__ void choose(const RouteCall& p, int row, int lane) {
  const int experts = p.routes.experts, per_token = p.routes.per_token;
  const bool real = p.real_rows == nullptr || row < *p.real_rows;
  const float* logits = p.logits + static_cast<std::size_t>(row) * experts;
  std::int32_t* found = p.routes.places + static_cast<std::size_t>(row) * per_token;
  Choice last{INFINITY, -1};
  float largest = 0, sum = 0;
  for (int i = 0; i < per_token; ++i) {
    Choice best{-INFINITY, kMaxExperts};
    for (int expert = lane; real && expert < experts; expert += kWarp) {
      const Choice next{logits[expert], expert};
      if (last.before(next) && next.before(best)) best = next;
    }
    best = warp_first(best);
    const bool is_one = best.expert < kMaxExperts;
    if (is_one) last = best;
    if (!is_one) best = {NAN, real && i == 0 ? 0 : -1};
    if (i == 0) largest = best.logit;
    sum += expf(best.logit - largest);
    if (lane == 0) found[i] = best.expert;
  }
  if (sum > 0 && p.softmax == RouterSoftmax::kAll) sum = warp_sum_exp(logits, experts, largest, lane);
  __syncwarp();
  for (int i = lane; i < per_token; i += kWarp) {
    const int expert = found[i];
    int place = row * per_token;  // by expert; none at all come first
    for (int j = 0; j < per_token; ++j) place += found[j] < expert || (found[j] == expert && j < i);
    p.routes.chosen[place] = expert;
    p.routes.weights[place] = expf((expert < 0 ? NAN : logits[expert]) - largest) / sum;
  }
}

// ---- a block sorts the pairs by expert, those of an expert staying in their order

constexpr int kListWarps = 32;
constexpr int kListThreads = kListWarps * kWarp;
constexpr int kCounters = 8192;
static_assert(kCounters >= kMaxExperts);

// Of each part of the pairs and expert: how many there are, then the position of the next.
struct Counters {
  std::int32_t values[kCounters];
  long long of_warps[kListWarps];
};

// Σ of the values of the threads before this one; `total` becomes that of all.
__device__ long long sum_before(long long value, long long (&of_warps)[kListWarps], long long& total) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  long long sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const long long other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  long long before = 0;
  total = 0;
  for (int w = 0; w < kListWarps; ++w) {
    if (w == warp) before = total;
    total += of_warps[w];
  }
  __syncthreads();
  return before + sum - value;
}

// What the pairs of a part have chosen, kWarp at a time: body(pair, expert, lanes of the same expert), expert -1 for
// none. The next are read beside it.
template <class Body>
__device__ void for_pairs(const Routes& routes, int first, int end, int lane, const Body& body) {
  const auto chosen = [&](int pair) { return pair < end ? routes.chosen[pair] : -1; };
  for (int next = chosen(first + lane); first < end; first += kWarp) {
    const int expert = next;
    next = chosen(first + kWarp + lane);
    body(first + lane, expert, __match_any_sync(kAllLanes, expert));
  }
}

// From counts to positions, an expert a thread; begins and tiles on the way.
__device__ void count_positions(const Routes& routes, int parts, Counters& counters) {
  const int size = routes.tile_positions();
  long long done = 0;  // tiles | positions
  for (int first = 0; first < routes.experts; first += kListThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool there = expert < routes.experts;
    int count = 0;
    for (int part = 0; there && part < parts; ++part) count += counters.values[part * routes.experts + expert];
    long long total;
    const long long own = static_cast<long long>(ceil_div(count, size)) << 32 | count;
    const long long before = done + sum_before(own, counters.of_warps, total);
    done += total;
    if (!there) continue;
    const int begin = static_cast<int>(before & 0xffffffff), tile = static_cast<int>(before >> 32);
    routes.begins[expert] = begin;
    routes.first_tiles[expert] = tile;
    for (int i = 0; i < count; i += size) {
      routes.tiles[tile + i / size] = {expert, begin + i, begin + min(i + size, count)};
    }
    int position = begin;
    for (int part = 0; part < parts; ++part) {
      std::int32_t& counter = counters.values[part * routes.experts + expert];
      const int of_part = counter;
      counter = position;
      position += of_part;
    }
  }
  const int tiles = static_cast<int>(done >> 32), most = routes.most_tiles(routes.experts);
  if (threadIdx.x == 0) {
    routes.begins[routes.experts] = static_cast<int>(done & 0xffffffff);
    routes.first_tiles[routes.experts] = tiles;
  }
  for (int i = tiles + static_cast<int>(threadIdx.x); i < most; i += kListThreads) routes.tiles[i] = {-1, 0, 0};
}

// A warp a part of the pairs.
__device__ void list(const Routes& routes, Counters& counters) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, pairs = routes.positions();
  const int most_parts = min(kListWarps, kCounters / routes.experts);
  const int of_part = ceil_div(ceil_div(pairs, most_parts), kWarp) * kWarp, parts = ceil_div(pairs, of_part);
  const int first = warp * of_part, end = min(pairs, first + of_part);  // none from `parts` on
  std::int32_t* own = counters.values + (warp < parts ? warp : 0) * routes.experts;
  for (int i = threadIdx.x; i < parts * routes.experts; i += kListThreads) counters.values[i] = 0;
  __syncthreads();
  for_pairs(routes, first, end, lane, [&](int, int expert, unsigned alike) {
    if (expert >= 0 && lane == __ffs(alike) - 1) own[expert] += __popc(alike);
    __syncwarp();
  });
  __syncthreads();
  count_positions(routes, parts, counters);
  __syncthreads();
  for_pairs(routes, first, end, lane, [&](int pair, int expert, unsigned alike) {
    const int place = expert < 0 ? 0 : own[expert] + __popc(alike & ((1u << lane) - 1));
    __syncwarp();
    if (expert >= 0) {
      if (lane == __ffs(alike) - 1) own[expert] += __popc(alike);
      routes.places[pair] = place;
      routes.rows_of[place] = pair / routes.per_token;
    }
    __syncwarp();
  });
}

// ---- kernels

constexpr int kChooseWarps = 4;

__global__ void __launch_bounds__(kChooseWarps* kWarp) choose_kernel(const __grid_constant__ RouteCall p) {
  begin_overlapped();
  const int row = static_cast<int>(blockIdx.x) * kChooseWarps + threadIdx.x / kWarp;
  if (row < p.routes.rows) choose(p, row, threadIdx.x % kWarp);
}

__global__ void __launch_bounds__(kListThreads) list_kernel(const __grid_constant__ Routes routes) {
  begin_overlapped();
  __shared__ Counters counters;
  list(routes, counters);
}

// Both, for as many rows as a block has warps.
__global__ void __launch_bounds__(kListThreads) route_kernel(const __grid_constant__ RouteCall p) {
  begin_overlapped();
  __shared__ Counters counters;
  const int row = threadIdx.x / kWarp;
  if (row < p.routes.rows) choose(p, row, threadIdx.x % kWarp);
  __syncthreads();
  list(p.routes, counters);
}

}  // namespace

void route(CUstream_st* stream, const RouteCall& call) {
  if (call.routes.rows == 0) return;
  if (call.routes.rows <= kListWarps) {
    launch_overlapped(1, kListThreads, 0, stream, route_kernel, call);
    return;
  }
  const auto blocks = static_cast<unsigned>(ceil_div(call.routes.rows, kChooseWarps));
  launch_overlapped(blocks, kChooseWarps * kWarp, 0, stream, choose_kernel, call);
  launch_overlapped(1, kListThreads, 0, stream, list_kernel, call.routes);
}

}  // namespace computron::kernels::cuda
