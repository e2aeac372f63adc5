#include "kernels/cuda/activation.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/lane_codes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

// ---- routes

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

constexpr int kChooseWarps = 4;

// A warp a row. Choices are found one by one: the first that comes behind the one before. Where logits are no numbers
// there may be none left: then the row's weights are no numbers either, and it has chosen one expert at least, so that
// whoever looks at it sees that.
__global__ void __launch_bounds__(kChooseWarps* kWarp) choose_kernel(const __grid_constant__ RouteCall p) {
  const int row = static_cast<int>(blockIdx.x) * kChooseWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= p.routes.rows) return;
  const bool real = p.real_rows == nullptr || row < *p.real_rows;
  const float* logits = p.logits + static_cast<std::size_t>(row) * p.routes.experts;
  std::int32_t* chosen = p.routes.chosen + static_cast<std::size_t>(row) * p.routes.per_token;
  float* weights = p.routes.weights + static_cast<std::size_t>(row) * p.routes.per_token;
  Choice last{INFINITY, -1};
  float largest = 0, sum = 0;
  for (int i = 0; i < p.routes.per_token; ++i) {
    Choice best{-INFINITY, kMaxExperts};
    for (int expert = lane; real && expert < p.routes.experts; expert += kWarp) {
      const Choice next{logits[expert], expert};
      if (last.before(next) && next.before(best)) best = next;
    }
    best = warp_first(best);
    const bool found = best.expert < kMaxExperts;
    if (found) last = best;
    if (!found) best = {NAN, real && i == 0 ? 0 : -1};
    if (i == 0) largest = best.logit;
    const float weight = expf(best.logit - largest);
    sum += weight;
    if (lane != 0) continue;
    int place = i;  // among those before, by expert; none at all come first
    for (; place > 0 && chosen[place - 1] > best.expert; --place) {
      chosen[place] = chosen[place - 1];
      weights[place] = weights[place - 1];
    }
    chosen[place] = best.expert;
    weights[place] = weight;
  }
  if (sum > 0 && p.softmax == RouterSoftmax::kAll) sum = warp_sum_exp(logits, p.routes.experts, largest, lane);
  if (lane != 0) return;
  for (int i = 0; i < p.routes.per_token; ++i) weights[i] /= sum;
}

constexpr int kListWarps = 32;

// One block. A warp counts, and then lists, what has chosen an expert, kWarp pairs at a time.
__global__ void __launch_bounds__(kListWarps* kWarp) list_kernel(const __grid_constant__ Routes routes) {
  __shared__ int begins[kMaxExperts + 1];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, pairs = routes.positions();
  const auto have_chosen = [&](int first, int expert) {
    return __ballot_sync(kAllLanes, first + lane < pairs && routes.chosen[first + lane] == expert);
  };
  for (int expert = warp; expert < routes.experts; expert += kListWarps) {
    int count = 0;
    for (int first = 0; first < pairs; first += kWarp) count += __popc(have_chosen(first, expert));
    if (lane == 0) begins[expert + 1] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    begins[0] = 0;
    for (int expert = 0; expert < routes.experts; ++expert) begins[expert + 1] += begins[expert];
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert <= routes.experts; expert += kListWarps * kWarp) {
    routes.begins[expert] = begins[expert];
  }
  for (int expert = warp; expert < routes.experts; expert += kListWarps) {
    int next = begins[expert];
    for (int first = 0; first < pairs; first += kWarp) {
      const unsigned ballot = have_chosen(first, expert);
      if ((ballot >> lane & 1) != 0) {
        const int place = next + __popc(ballot & ((1u << lane) - 1));
        routes.places[first + lane] = place;
        routes.rows_of[place] = (first + lane) / routes.per_token;
      }
      next += __popc(ballot);
    }
  }
}

// ---- products

// Result `n`, a row of the weight, of a position.
__device__ void finish(const ExpertGemmCall& p, int expert, int position, int n, float sum) {
  if (p.biases != nullptr) sum += p.biases[static_cast<std::size_t>(expert) * p.out_columns + n];
  store(activate(p.activation, sum), p.out, p.out_dtype, static_cast<std::size_t>(position) * p.out_columns + n);
}

// What a block multiplies: a tile of a weight's rows with some of the positions of its expert.
struct ExpertTile {
  const RowRun& run;
  int expert;
  int row;         // of the run, the first
  int begin, end;  // positions

  __device__ ExpertTile(const ExpertGemmCall& p, int most_positions)
      : run(p.runs.with_tile(static_cast<int>(blockIdx.x))),
        expert(p.experts[&run - p.runs.runs]),
        row((static_cast<int>(blockIdx.x) - run.first_tile) * kExpertTileRows) {
    begin = p.routes.begins[expert] + static_cast<int>(blockIdx.y) * most_positions;
    end = min(p.routes.begins[expert + 1], begin + most_positions);
  }
};

__device__ const std::byte* x_of(const ExpertGemmCall& p, int position, std::size_t element_bytes) {
  return p.x + static_cast<std::size_t>(p.x_by_row ? p.routes.rows_of[position] : position) * p.depth * element_bytes;
}

constexpr int kTileWarps = kExpertTileRows / kTileRows;
constexpr int kTileThreads = kTileWarps * kWarp;
constexpr int kStep = 64;  // elements of the depth that are multiplied between two barriers
constexpr int kSlices = kStep / QuantisedTiles::kSlice;
constexpr int kPieces = kStep / 8;  // of 16 bytes
constexpr int kPadPieces = 4;       // so that two rows of x lie in different banks

// What a lane holds of its warp's kTileRows rows of a weight for a step: of each K slice eight elements of rows lane /
// 4 and lane / 4 + 8, from depth slice × 32 + lane % 4 × 8 on, in an order that x is read in, too (gemm.h, depth_of).
template <class T>
struct PlainStep {
  using Element = T;
  uint4 rows[kSlices][2];

  __device__ void load(const ExpertGemmCall& p, const ExpertTile& tile, int warp, int first, int lane) {
    const int row = tile.row + warp * kTileRows + lane / 4;
    const T* weight = reinterpret_cast<const T*>(tile.run.data) + static_cast<std::size_t>(row) * p.depth;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      const int k = first + s * QuantisedTiles::kSlice + lane % 4 * 8;
      rows[s][0] = k < p.depth ? load_once(weight + k) : uint4{};
      rows[s][1] = k < p.depth ? load_once(weight + 8 * static_cast<std::size_t>(p.depth) + k) : uint4{};
    }
  }
  __device__ void values(int slice, unsigned (&a)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& row = rows[slice][i];
      a[i][0] = row.x, a[i][1] = row.y, a[i][2] = row.z, a[i][3] = row.w;
    }
  }
};

template <class Codes, class Scales>
struct QuantisedStep {
  using Element = BFloat16;
  LaneCodes<Codes, Scales, kSlices * Codes::kBits / 8> codes;

  __device__ void load(const ExpertGemmCall& p, const ExpertTile& tile, int warp, int first, int lane) {
    codes.load(p.tiles, tile.run.data + (tile.row / kTileRows + warp) * p.tiles.tile_bytes(), first, lane);
  }
  __device__ void values(int slice, unsigned (&a)[2][4]) const {
    codes.values(slice, 0, a[0]);
    codes.values(slice, 1, a[1]);
  }
};

// In shared memory.
template <class T, int kPositions>
struct StagedRows {
  uint4 x[2][kPositions][kPieces + kPadPieces];
  const T* from[kPositions];  // null: there is none
};

// A block kExpertTileRows rows of a weight, a warp kTileRows of them, and 8 × kColumns positions.
//
//   x, step i + 1        |--copy into shared memory--|
//   weight, step i + 1   |--loads into registers-----|
//   tensor cores         |-- step i --|
template <class Step, int kColumns>
__global__ void __launch_bounds__(kTileThreads) tiled_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  using T = typename Step::Element;
  constexpr int kPositions = 8 * kColumns;
  __shared__ StagedRows<T, kPositions> shared;
  const ExpertTile tile(p, kPositions);
  const int count = tile.end - tile.begin;
  if (count <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  for (int m = threadIdx.x; m < kPositions; m += kTileThreads) {
    shared.from[m] = m < count ? reinterpret_cast<const T*>(x_of(p, tile.begin + m, sizeof(T))) : nullptr;
  }
  __syncthreads();
  const auto copy_x = [&](int buffer, int first) {
    for (int i = threadIdx.x; i < kPositions * kPieces; i += kTileThreads) {
      const int m = i / kPieces, k = first + i % kPieces * 8;
      const bool there = shared.from[m] != nullptr && k < p.depth;
      const T* const from = there ? shared.from[m] + k : reinterpret_cast<const T*>(p.x);
      copy_async(&shared.x[buffer][m][i % kPieces], from, there);
    }
    commit_copies();
  };

  float acc[kColumns][4] = {};
  Step next;
  copy_x(0, 0);
  next.load(p, tile, warp, 0, lane);
  for (int first = 0, buffer = 0; first < p.depth; first += kStep, buffer ^= 1) {
    const Step weight = next;
    copy_x(buffer ^ 1, first + kStep);
    if (first + kStep < p.depth) next.load(p, tile, warp, first + kStep, lane);
    wait_for_copies<1>();
    __syncthreads();  // x of this step is there
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      unsigned a[2][4];
      weight.values(s, a);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        if (8 * n >= count) break;
        const uint4 b = shared.x[buffer][8 * n + g][s * QuantisedTiles::kSlice / 8 + t];
        mma(T{}, acc[n], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
        mma(T{}, acc[n], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
      }
    }
    __syncthreads();  // x of this step has been read
  }
  wait_for_copies<0>();
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = 8 * n + 2 * t + i % 2, row = tile.row + warp * kTileRows + g + i / 2 * 8;
      if (m < count && row < tile.run.rows) finish(p, tile.expert, tile.begin + m, tile.run.row_begin + row, acc[n][i]);
    }
  }
}

constexpr int kPlainWarps = 8;
constexpr int kPlainPositions = 8;

template <class T>
__global__ void __launch_bounds__(kPlainWarps* kWarp) plain_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  const ExpertTile tile(p, kPlainPositions);
  const int count = tile.end - tile.begin;
  if (count <= 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int end = min(tile.row + kExpertTileRows, tile.run.rows);
  for (int row = tile.row + warp; row < end; row += kPlainWarps) {
    const T* weight = reinterpret_cast<const T*>(tile.run.data) + static_cast<std::size_t>(row) * p.depth;
    for (int m = 0; m < count; ++m) {
      const T* x = reinterpret_cast<const T*>(x_of(p, tile.begin + m, sizeof(T)));
      float sum = 0;
      for (int k = lane; k < p.depth; k += kWarp) sum = fmaf(widen(x[k]), widen(weight[k]), sum);
      sum = warp_sum(sum);
      if (lane == 0) finish(p, tile.expert, tile.begin + m, tile.run.row_begin + row, sum);
    }
  }
}

// Every row may have chosen the same expert; blocks without positions leave at once.
dim3 grid_of(const ExpertGemmCall& call, int positions) {
  return {static_cast<unsigned>(call.runs.tiles), static_cast<unsigned>(ceil_div(call.routes.rows, positions))};
}

constexpr int kFewColumns = 1, kManyColumns = 8;

template <class Step>
void launch_tiled(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows <= 8 * kFewColumns) {
    tiled_expert_kernel<Step, kFewColumns><<<grid_of(call, 8 * kFewColumns), kTileThreads, 0, stream>>>(call);
  } else {
    tiled_expert_kernel<Step, kManyColumns><<<grid_of(call, 8 * kManyColumns), kTileThreads, 0, stream>>>(call);
  }
}

template <class T>
void launch_plain(CUstream_st* stream, const ExpertGemmCall& call) {
  plain_expert_kernel<T><<<grid_of(call, kPlainPositions), kPlainWarps * kWarp, 0, stream>>>(call);
}

}  // namespace

void route(CUstream_st* stream, const RouteCall& call) {
  if (call.routes.rows == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(call.routes.rows, kChooseWarps));
  choose_kernel<<<blocks, kChooseWarps * kWarp, 0, stream>>>(call);
  list_kernel<<<1, kListWarps * kWarp, 0, stream>>>(call.routes);
}

void tiled_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows == 0 || call.runs.tiles == 0) return;
  if (call.tiles.quantised()) {
    with_codes_and_scales(call.tiles, [&]<class Codes, class Scales>(Codes, Scales) {
      launch_tiled<QuantisedStep<Codes, Scales>>(stream, call);
    });
  } else if (call.dtype == DType::kBF16) {
    launch_tiled<PlainStep<BFloat16>>(stream, call);
  } else {
    launch_tiled<PlainStep<Float16>>(stream, call);
  }
}

void plain_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows == 0 || call.runs.tiles == 0) return;
  with_element(call.dtype, [&]<class T>(T) { launch_plain<T>(stream, call); });
}

}  // namespace computron::kernels::cuda
