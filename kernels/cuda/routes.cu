#include <algorithm>
#include <bit>

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

// What is written of a choice: among the row's own, by expert; and the row's bit in the mask of its expert.
__device__ void write_choice(const RouteCall& p, int place, int expert, float weight, unsigned* masks, unsigned bit) {
  p.routes.chosen[place] = expert;
  p.routes.weights[place] = weight;
  if (expert >= 0) atomicOr(&masks[expert], bit);
}

// Choices are found one by one: the first that comes behind the one before. Where logits are no numbers there may be
// none left: then the row's weights are no numbers either, and it has chosen one expert at least, so that whoever looks
// at it sees that. Until they are put in order, choices lie where places will.
__device__ void choose_of_many(const RouteCall& p, int row, int lane, unsigned* masks, unsigned bit) {
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
    write_choice(p, place, expert, expf((expert < 0 ? NAN : logits[expert]) - largest) / sum, masks, bit);
  }
}

// In the order of logits, zeros of both signs alike, as unsigned numbers above zero; zero of what is no number.
__device__ unsigned key_of(float logit) {
  const unsigned bits = std::bit_cast<unsigned>(logit + 0.0f);
  if (logit != logit) return 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float logit_of(unsigned key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The same of up to kHeld × kWarp experts, whose logits lanes hold; of up to kWarp choices, a lane each.
template <int kHeld>
__device__ void choose_of_few(const RouteCall& p, int row, int lane, unsigned* masks, unsigned bit) {
  const int experts = p.routes.experts, per_token = p.routes.per_token;
  const bool real = p.real_rows == nullptr || row < *p.real_rows;
  const float* logits = p.logits + static_cast<std::size_t>(row) * experts;
  unsigned keys[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int expert = lane + k * kWarp;
    keys[k] = real && expert < experts ? key_of(logits[expert]) : 0;
  }
  float largest = 0, sum = 0, own_logit = NAN;
  int own = -1;
  for (int i = 0; i < per_token; ++i) {
    unsigned best = keys[0];
    int at = 0;
#pragma unroll
    for (int k = 1; k < kHeld; ++k) {
      if (keys[k] > best) best = keys[k], at = k;
    }
    const unsigned key = __reduce_max_sync(kAllLanes, best);
    const int first = __reduce_min_sync(kAllLanes, best == key ? lane + at * kWarp : kMaxExperts);
    const int expert = key > 0 ? first : real && i == 0 ? 0 : -1;
    const float logit = key > 0 ? logit_of(key) : NAN;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (first == lane + k * kWarp) keys[k] = 0;
    }
    if (i == 0) largest = logit;
    sum += expf(logit - largest);
    if (lane == i) own = expert, own_logit = logit;
  }
  if (sum > 0 && p.softmax == RouterSoftmax::kAll) sum = warp_sum_exp(logits, experts, largest, lane);
  int place = row * per_token;
  for (int j = 0; j < per_token; ++j) {
    const int other = __shfl_sync(kAllLanes, own, j);
    place += other < own || (other == own && j < lane);
  }
  if (lane < per_token) write_choice(p, place, own, expf(own_logit - largest) / sum, masks, bit);
}

// kHeld 0: of as many as there are.
template <int kHeld>
__device__ void choose(const RouteCall& p, int row, int lane, unsigned* masks, unsigned bit) {
  if constexpr (kHeld == 0) {
    choose_of_many(p, row, lane, masks, bit);
  } else {
    choose_of_few<kHeld>(p, row, lane, masks, bit);
  }
}

// body(i) for i in [0, count), a thread every kThreads-th.
template <int kThreads, class Body>
__device__ void share_out(int count, const Body& body) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) body(i);
}

// ---- a block gives the pairs of some rows their positions

template <int kThreads>
struct Positions {
  // Of each expert the number of pairs of rows before the block's; from find_begins() on the position of its next pair.
  std::int32_t next[kMaxExperts];
  long long of_warps[kThreads / kWarp];
};

// Σ of the values of the threads before this one; `total` becomes that of all.
template <int kWarps>
__device__ long long sum_before(long long value, long long (&of_warps)[kWarps], long long& total) {
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
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = total;
    total += of_warps[w];
  }
  __syncthreads();
  return before + sum - value;
}

// count_of(expert): of all rows' pairs; an expert a thread. One block `writes` begins and tiles.
template <int kThreads, class CountOf>
__device__ void find_begins(const Routes& routes, Positions<kThreads>& positions, bool writes,
                            const CountOf& count_of) {
  const int size = routes.tile_positions;
  long long done = 0;  // tiles | positions
  for (int first = 0; first < routes.experts; first += kThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool there = expert < routes.experts;
    const int count = there ? count_of(expert) : 0;
    long long total;
    const long long own = static_cast<long long>(ceil_div(count, size)) << 32 | count;
    const long long before = done + sum_before(own, positions.of_warps, total);
    done += total;
    if (!there) continue;
    const int begin = static_cast<int>(before & 0xffffffff), tile = static_cast<int>(before >> 32);
    positions.next[expert] += begin;
    if (!writes) continue;
    routes.begins[expert] = begin;
    routes.first_tiles[expert] = tile;
    const int own_tiles = ceil_div(count, size);  // as large as each other, but for whole eights
    const int own_size = count <= size ? size : ceil_div(ceil_div(count, own_tiles), 8) * 8;
    for (int i = 0; i < own_tiles; ++i) {
      routes.tiles[tile + i] = {expert, begin + i * own_size, begin + min((i + 1) * own_size, count)};
    }
  }
  if (!writes) return;
  const int tiles = static_cast<int>(done >> 32), most = routes.most_tiles(routes.experts);
  if (threadIdx.x == 0) {
    routes.begins[routes.experts] = static_cast<int>(done & 0xffffffff);
    routes.first_tiles[routes.experts] = tiles;
  }
  share_out<kThreads>(most - tiles, [&](int i) { routes.tiles[tiles + i] = {-1, 0, 0}; });
}

// To the pairs of rows [first, end), whose bits `masks` have from 0 on.
template <int kThreads>
__device__ void give_positions(const Routes& routes, const Positions<kThreads>& positions, const unsigned* masks,
                               int first, int end) {
  const int per_token = routes.per_token;
  share_out<kThreads>((end - first) * per_token, [&](int i) {
    const int pair = first * per_token + i, row = pair / per_token, expert = routes.chosen[pair];
    if (expert < 0) return;
    const int place = positions.next[expert] + __popc(masks[expert] & ((1u << (row - first)) - 1));
    routes.places[pair] = place;
    routes.rows_of[place] = row;
  });
}

constexpr int kListThreads = 512;

// Pairs of each expert: of all rows, and of those of the parts before `first`.
__device__ void count_pairs(const Routes& routes, int first, std::int32_t* counts, std::int32_t* next) {
  constexpr int kAtOnce = 16;
  const int experts = routes.experts, parts = Routes::parts(routes.rows), thread = threadIdx.x;
  share_out<kListThreads>(experts, [&](int expert) { counts[expert] = next[expert] = 0; });
  __syncthreads();
  // Threads side by side have experts side by side; where there are few, every so many-th part.
  const int width = min(kListThreads, ceil_div(experts, kWarp) * kWarp), of_width = kListThreads / width;
  const int stride = of_width * experts;
  for (int expert = thread % width; thread < of_width * width && expert < experts; expert += width) {
    int all = 0, before = 0;
    for (int part = thread / width; part < parts; part += kAtOnce * of_width) {
      const unsigned* const from = routes.masks + static_cast<std::size_t>(part) * experts + expert;
      const int left = ceil_div(parts - part, of_width), earlier = part < first ? ceil_div(first - part, of_width) : 0;
      unsigned masks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) masks[i] = i < left ? from[i * stride] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int count = __popc(masks[i]);
        all += count;
        before += i < earlier ? count : 0;
      }
    }
    atomicAdd(&counts[expert], all);
    atomicAdd(&next[expert], before);
  }
  __syncthreads();
}

// ---- kernels

constexpr int kChooseThreads = Routes::kPartRows * kWarp;
constexpr int kRouteWarps = 32, kRouteThreads = kRouteWarps * kWarp;
constexpr unsigned kMostLists = 128;  // blocks, each of which counts all pairs

// A block a part, a warp a row.
template <int kHeld>
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(const __grid_constant__ RouteCall p) {
  begin_overlapped();
  __shared__ unsigned masks[kMaxExperts];
  const int thread = threadIdx.x, of_part = thread / kWarp, experts = p.routes.experts;
  share_out<kChooseThreads>(experts, [&](int expert) { masks[expert] = 0; });
  __syncthreads();
  const int row = static_cast<int>(blockIdx.x) * Routes::kPartRows + of_part;
  if (row < p.routes.rows) choose<kHeld>(p, row, thread % kWarp, masks, 1u << of_part);
  __syncthreads();
  unsigned* const to = p.routes.masks + static_cast<std::size_t>(blockIdx.x) * experts;
  share_out<kChooseThreads>(experts, [&](int expert) { to[expert] = masks[expert]; });
}

// A block some parts.
__global__ void __launch_bounds__(kListThreads) list_kernel(const __grid_constant__ Routes routes) {
  begin_overlapped();
  __shared__ std::int32_t counts[kMaxExperts];
  __shared__ Positions<kListThreads> positions;
  const int parts = Routes::parts(routes.rows), own = ceil_div(parts, static_cast<int>(gridDim.x));
  const int first = min(parts, static_cast<int>(blockIdx.x) * own), end = min(parts, first + own);
  count_pairs(routes, first, counts, positions.next);
  find_begins(routes, positions, blockIdx.x == 0, [&](int expert) { return counts[expert]; });
  for (int part = first; part < end; ++part) {
    __syncthreads();
    const unsigned* const masks = routes.masks + static_cast<std::size_t>(part) * routes.experts;
    const int row = part * Routes::kPartRows;
    give_positions(routes, positions, masks, row, min(row + Routes::kPartRows, routes.rows));
    if (part + 1 == end) break;
    __syncthreads();
    share_out<kListThreads>(routes.experts, [&](int expert) { positions.next[expert] += __popc(masks[expert]); });
  }
}

// Both, for as many rows as a block has warps.
template <int kHeld>
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const __grid_constant__ RouteCall p) {
  begin_overlapped();
  __shared__ unsigned masks[kMaxExperts];
  __shared__ Positions<kRouteThreads> positions;
  const int thread = threadIdx.x, row = thread / kWarp, experts = p.routes.experts;
  share_out<kRouteThreads>(experts, [&](int expert) { masks[expert] = 0; });
  __syncthreads();
  if (row < p.routes.rows) choose<kHeld>(p, row, thread % kWarp, masks, 1u << row);
  __syncthreads();
  share_out<kRouteThreads>(experts, [&](int expert) { positions.next[expert] = 0; });
  find_begins(p.routes, positions, /*writes=*/true, [&](int expert) { return __popc(masks[expert]); });
  __syncthreads();
  give_positions(p.routes, positions, masks, 0, p.routes.rows);
}

template <int kHeld>
void launch_route(CUstream_st* stream, const RouteCall& call) {
  if (call.routes.rows <= kRouteWarps) {
    launch_overlapped(1, kRouteThreads, 0, stream, route_kernel<kHeld>, call);
    return;
  }
  const auto parts = static_cast<unsigned>(Routes::parts(call.routes.rows));
  launch_overlapped(parts, kChooseThreads, 0, stream, choose_kernel<kHeld>, call);
  launch_overlapped(std::min(parts, kMostLists), kListThreads, 0, stream, list_kernel, call.routes);
}

}  // namespace

void route(CUstream_st* stream, const RouteCall& call) {
  const int held = ceil_div(call.routes.experts, kWarp);
  if (call.routes.rows == 0) return;
  if (held > 16 || call.routes.per_token > kWarp) {
    launch_route<0>(stream, call);
  } else if (held > 8) {
    launch_route<16>(stream, call);
  } else if (held > 4) {
    launch_route<8>(stream, call);
  } else {
    launch_route<4>(stream, call);
  }
}

}  // namespace computron::kernels::cuda
