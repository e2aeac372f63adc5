#include <algorithm>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/lane_codes.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

// Result `n`, a row of the weight, of a position.
__device__ void finish(const ExpertGemmCall& p, int expert, int position, int n, float sum) {
  if (p.biases != nullptr) sum += p.biases[static_cast<std::size_t>(expert) * p.out_columns + n];
  store(activate(p.activation, sum), p.out, p.out_dtype, static_cast<std::size_t>(position) * p.out_columns + n);
}

// What a block multiplies: a tile of rows of an expert's weight, numbered through its runs, and a tile of positions.
struct ExpertTile {
  PositionTile positions;
  const ExpertRun* run = nullptr;  // null: there is nothing to multiply
  int row = 0;                     // of the run, the first

  __device__ ExpertTile(const ExpertGemmCall& p, int tile_rows) {
    const int first = p.runs[0].expert, last = p.runs[p.count - 1].expert;
    const int before = first == 0 ? 0 : p.routes.first_tiles[first];
    const int place = before + static_cast<int>(blockIdx.y);
    if (place >= p.routes.most_tiles(p.routes.experts)) return;
    positions = p.routes.tiles[place];
    if (positions.expert < first || positions.expert > last) return;
    int tile = static_cast<int>(blockIdx.x);
    for (int i = p.first_run(positions.expert); i < p.count && p.runs[i].expert == positions.expert; ++i) {
      const int tiles = ceil_div(p.runs[i].rows, tile_rows);
      if (tile < tiles) {
        run = &p.runs[i];
        row = tile * tile_rows;
        return;
      }
      tile -= tiles;
    }
  }
  __device__ int count() const { return positions.end - positions.begin; }
  __device__ int rows() const { return run->rows - row; }  // from `row` on
};

__device__ const std::byte* x_of(const ExpertGemmCall& p, int position, std::size_t element_bytes) {
  return p.x + static_cast<std::size_t>(p.x_by_row ? p.routes.rows_of[position] : position) * p.depth * element_bytes;
}

// ---- tensor cores

// A block has kRowWarps × kColumnWarps warps. A warp has kRowTiles tiles of kTileRows rows of the weight, and
// kColumns times eight positions: every kColumnWarps-th eight of the block's, so that warps have as much to do where
// there are few. kStages steps of the depth are under way or multiplied.
template <int kRowWarps, int kColumnWarps_, int kRowTiles_, int kColumns_, int kStages_, int kBlocks_>
struct Shape {
  static constexpr int kColumnWarps = kColumnWarps_, kRowTiles = kRowTiles_, kColumns = kColumns_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;  // that an SM has room for
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarp;
  static constexpr int kRows = kRowWarps * kRowTiles * kTileRows;
  static constexpr int kPositions = kColumnWarps * kColumns * 8;
};

constexpr int kStep = 64;  // elements of the depth that are multiplied between two barriers
constexpr int kSlices = kStep / QuantisedTiles::kSlice;
constexpr int kRowPieces = kStep / 8;  // of 16 bytes

// How a step of eight rows lies in shared memory, as tensor cores take it: of each K slice the pieces of lane 0, 1, ...
// (gemm.h, depth_of), so that a warp reads 512 bytes in a row; the second slice in an order in which eight lanes that
// write a row reach different banks.
constexpr int kOctetPieces = 8 * kRowPieces;
__device__ int octet_place(int row, int piece) {
  const int slice = piece / 4, lane = row * 4 + piece % 4;
  return slice * kWarp + (lane ^ slice * 4);
}
__device__ int octet_place_of_lane(int slice, int lane) { return slice * kWarp + (lane ^ slice * 4); }

// A tile's rows of a plain weight.
template <class T, class Shape>
struct PlainRowsOfWeight {
  using Element = T;
  static constexpr int kPieces = Shape::kRows * kRowPieces;  // of a step, in shared memory

  const T* from;  // this thread's first piece
  int rows;       // from that piece's row on
  int depth;
  unsigned zero = gridDim.z - 1;  // what the compiler cannot know

  __device__ PlainRowsOfWeight(const ExpertGemmCall& p, const ExpertTile& tile, int, int)
      : from(reinterpret_cast<const T*>(tile.run->data) +
             static_cast<std::size_t>(tile.row + static_cast<int>(threadIdx.x) / kRowPieces) * p.depth +
             threadIdx.x % kRowPieces * 8),
        rows(tile.rows() - static_cast<int>(threadIdx.x) / kRowPieces),
        depth(p.depth) {}

  __device__ void copy(uint4* to, int first) const {
    constexpr int kRowsAtOnce = Shape::kThreads / kRowPieces;
    static_assert(kRowsAtOnce % 8 == 0);
    const int row = static_cast<int>(threadIdx.x) / kRowPieces;
    uint4* const own = to + row / 8 * kOctetPieces + octet_place(row % 8, threadIdx.x % kRowPieces);
    const bool is_deep = first + static_cast<int>(threadIdx.x) % kRowPieces * 8 < depth;
#pragma unroll
    for (int i = 0; i < Shape::kRows / kRowsAtOnce; ++i) {
      const bool there = is_deep && i * kRowsAtOnce < rows;
      const T* piece = from + static_cast<std::size_t>(i * kRowsAtOnce) * depth + first;
      copy_async(own + i * (kRowsAtOnce / 8) * kOctetPieces, there ? piece : from, there);
    }
  }

  __device__ void begin_step() {}
  __device__ void load(int) {}
  // Of the warp's tile `tile`. mma wants registers of two loads side by side; left to itself, ptxas gathers them by
  // moves for every product anew, where what `^ zero` gives, once, lies where it is wanted.
  __device__ void values(const uint4* step, int first_tile, int tile, int slice, int lane, unsigned (&a)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 row = step[(2 * (first_tile + tile) + i) * kOctetPieces + octet_place_of_lane(slice, lane)];
      a[i][0] = row.x ^ zero, a[i][1] = row.y ^ zero, a[i][2] = row.z ^ zero, a[i][3] = row.w ^ zero;
    }
  }
};

// Of a quantised one: codes come through shared memory, a unit as it is; scales into registers, a step ahead.
template <class Codes, class Scales, class Shape>
struct CodedRowsOfWeight {
  using Element = BFloat16;
  static constexpr int kUnits = kSlices * Codes::kBits / 8;  // of a tile and step
  static constexpr int kUnitDepth = kStep / kUnits;
  static constexpr int kTilePieces = kUnits * kWarp;
  static constexpr int kPieces = Shape::kRows / kTileRows * kTilePieces;
  using Lane = LaneCodes<Codes, Scales, kUnits>;

  const QuantisedTiles& tiles;
  const std::byte* from;  // the block's first tile
  std::size_t tile_bytes;
  int rows;
  int first_tile;  // of the warp
  int lane;
  Lane now[Shape::kRowTiles], next[Shape::kRowTiles];  // scales alone

  __device__ CodedRowsOfWeight(const ExpertGemmCall& p, const ExpertTile& tile, int warp_tile, int of_lane)
      : tiles(p.tiles),
        from(tile.run->data + static_cast<std::size_t>(tile.row / kTileRows) * p.tiles.tile_bytes()),
        tile_bytes(p.tiles.tile_bytes()),
        rows(tile.rows()),
        first_tile(warp_tile),
        lane(of_lane) {
    constexpr int kLine = 128;
    const std::size_t scales_at = tiles.scales_at();
    for (int i = 0; i < Shape::kRowTiles && is_there(first_tile + i); ++i) {
      const std::byte* of_tile = from + (first_tile + i) * tile_bytes;
      for (std::size_t at = scales_at + lane * kLine; at < tile_bytes; at += kWarp * kLine) prefetch(of_tile + at);
    }
    load(0);
  }

  __device__ bool is_there(int tile) const { return tile * kTileRows < rows; }

  __device__ void copy(uint4* to, int first) const {
    const std::byte* const step = from + static_cast<std::size_t>(first / kUnitDepth) * QuantisedTiles::kUnitBytes;
#pragma unroll
    for (int i = 0; i < ceil_div(kPieces, Shape::kThreads); ++i) {
      const int piece = i * Shape::kThreads + static_cast<int>(threadIdx.x);
      if (kPieces % Shape::kThreads != 0 && piece >= kPieces) break;
      const int tile = piece / kTilePieces, of_tile = piece % kTilePieces;
      const bool there = is_there(tile) && first + of_tile / kWarp * kUnitDepth < tiles.depth;
      copy_async(to + piece, there ? step + tile * tile_bytes + of_tile * QuantisedTiles::kLaneBytes : from, there);
    }
  }

  __device__ void load(int first) {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
      const int tile = is_there(first_tile + i) ? first_tile + i : 0;
      next[i].load_scales(tiles, from + tile * tile_bytes, first, lane);
    }
  }
  __device__ void begin_step() {
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) {
#pragma unroll
      for (int s = 0; s < kSlices; ++s) now[i].scales[s] = next[i].scales[s];
    }
  }
  __device__ void values(const uint4* step, int, int tile, int slice, int, unsigned (&a)[2][4]) {
    constexpr int kSlicesOfUnit = Lane::kSlicesOfUnit;
    const int unit = slice / kSlicesOfUnit;
    now[tile].codes[unit] = step[(first_tile + tile) * kTilePieces + unit * kWarp + lane];
    now[tile].values(slice, 0, a[0]);
    now[tile].values(slice, 1, a[1]);
  }
};

template <class Weight, class Shape>
struct SharedStage {
  uint4 weight[Weight::kPieces];
  uint4 x[Shape::kPositions * kRowPieces];
};
// Sums on their way out; two rows further are eight banks further.
template <class Shape>
struct SharedSums {
  float values[Shape::kPositions][Shape::kRows + 4];
};
template <class Weight, class Shape>
constexpr int kSharedBytes = static_cast<int>(std::max(Shape::kStages * sizeof(SharedStage<Weight, Shape>),
                                                       sizeof(SharedSums<Shape>)));

// acc += the products of a step, for the first kColumns of a warp's columns, or for half of them where these are all it
// has, and so on.
template <class Shape, int kColumns, class Weight>
__device__ void multiply_step(float (&acc)[Shape::kRowTiles][Shape::kColumns][4], Weight& weight,
                              const uint4* of_weight, const uint4* x, int row_tile, int column_warp, int lane,
                              int columns) {
  if constexpr (kColumns > 1) {
    if (columns <= kColumns / 2) {
      return multiply_step<Shape, kColumns / 2>(acc, weight, of_weight, x, row_tile, column_warp, lane, columns);
    }
  }
  using T = typename Weight::Element;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    unsigned a[Shape::kRowTiles][2][4];
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles; ++i) weight.values(of_weight, row_tile, i, s, lane, a[i]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const uint4 b = x[(n * Shape::kColumnWarps + column_warp) * kOctetPieces + octet_place_of_lane(s, lane)];
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        mma(T{}, acc[i][n], a[i][0][0], a[i][1][0], a[i][0][1], a[i][1][1], b.x, b.y);
      }
#pragma unroll
      for (int i = 0; i < Shape::kRowTiles; ++i) {
        mma(T{}, acc[i][n], a[i][0][2], a[i][1][2], a[i][0][3], a[i][1][3], b.z, b.w);
      }
    }
  }
}

template <class Shape>
__device__ void store_sums(const ExpertGemmCall& p, const ExpertTile& tile, const SharedSums<Shape>& sums) {
  constexpr int kQuads = Shape::kRows / 4;
  const int rows = tile.rows(), first = tile.run->row_begin + tile.row, expert = tile.positions.expert;
  const bool in_quads = p.out_dtype == DType::kF32 && p.activation == Activation::kNone && p.out_columns % 4 == 0 &&
                        first % 4 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
  const float* bias = p.biases == nullptr ? nullptr : p.biases + static_cast<std::size_t>(expert) * p.out_columns;
#pragma unroll 1
  for (int i = threadIdx.x; i < tile.count() * kQuads; i += Shape::kThreads) {
    const int m = i / kQuads, row = i % kQuads * 4, position = tile.positions.begin + m;
    if (row >= rows) continue;
    float4 four = *reinterpret_cast<const float4*>(&sums.values[m][row]);
    if (in_quads && row + 4 <= rows) {
      if (bias != nullptr) {
        const float* of_row = bias + first + row;
        four = {four.x + of_row[0], four.y + of_row[1], four.z + of_row[2], four.w + of_row[3]};
      }
      float* out = reinterpret_cast<float*>(p.out) + static_cast<std::size_t>(position) * p.out_columns + first + row;
      *reinterpret_cast<float4*>(out) = four;
    } else {
#pragma unroll 1
      for (int r = 0; r < 4 && row + r < rows; ++r)
        finish(p, expert, position, first + row + r, sums.values[m][row + r]);
    }
  }
}

// A block Shape::kRows rows of a weight and up to Shape::kPositions positions of its expert.
//
//   steps i + 1, ..., i + kStages - 1   |--copies into shared memory--|
//   tensor cores                        |-- step i --|
template <class Weight, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    tiled_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  using T = typename Weight::Element;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ const T* x_from[Shape::kPositions];
  begin_overlapped();
  const ExpertTile tile(p, Shape::kRows);
  if (tile.run == nullptr) return;
  auto* const stages = reinterpret_cast<SharedStage<Weight, Shape>*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int column_warp = warp % Shape::kColumnWarps, row_tile = warp / Shape::kColumnWarps * Shape::kRowTiles;
  const int count = tile.count();
  const int columns = ceil_div(ceil_div(count, 8) - column_warp, Shape::kColumnWarps);  // that this warp has
  for (int m = thread; m < count; m += Shape::kThreads) {
    x_from[m] = reinterpret_cast<const T*>(x_of(p, tile.positions.begin + m, sizeof(T)));
  }
  Weight weight(p, tile, row_tile, lane);
  __syncthreads();
  const auto copy = [&](int stage, int first) {
    weight.copy(stages[stage].weight, first);
    const int piece = thread % kRowPieces, k = first + piece * 8;
#pragma unroll
    for (int m = thread / kRowPieces; m < Shape::kPositions; m += Shape::kThreads / kRowPieces) {
      if (m >= count) break;
      const bool there = k < p.depth;
      const T* const from = x_from[m] + (there ? k : 0);
      copy_async(&stages[stage].x[m / 8 * kOctetPieces + octet_place(m % 8, piece)], from, there);
    }
  };

  float acc[Shape::kRowTiles][Shape::kColumns][4] = {};
  const int steps = ceil_div(p.depth, kStep);
#pragma unroll
  for (int s = 0; s < Shape::kStages - 1; ++s) {
    if (s < steps) copy(s, s * kStep);
    commit_copies();
  }
  for (int step = 0, stage = 0; step < steps; ++step) {
    weight.begin_step();
    if (step + 1 < steps) weight.load((step + 1) * kStep);
    wait_for_copies<Shape::kStages - 2>();
    __syncthreads();  // this step is there, and the one before has been read
    const int ahead = step + Shape::kStages - 1;
    if (ahead < steps) copy(stage == 0 ? Shape::kStages - 1 : stage - 1, ahead * kStep);
    commit_copies();
    if (columns > 0) {
      multiply_step<Shape, Shape::kColumns>(acc, weight, stages[stage].weight, stages[stage].x, row_tile, column_warp,
                                            lane, columns);
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();  // all has been read

  auto& sums = *reinterpret_cast<SharedSums<Shape>*>(memory);
#pragma unroll
  for (int n = 0; n < Shape::kColumns; ++n) {
    if (n >= columns) break;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 4; ++i) {
      const int m = (n * Shape::kColumnWarps + column_warp) * 8 + lane % 4 * 2 + i % 2;
      sums.values[m][(row_tile + i / 4) * kTileRows + lane / 4 + i / 2 % 2 * 8] = acc[i / 4][n][i % 4];
    }
  }
  __syncthreads();
  store_sums<Shape>(p, tile, sums);
}

// ---- any type

constexpr int kPlainWarps = 8;
constexpr int kPlainRows = 64;      // of the weight
constexpr int kPlainPositions = 8;  // the grid's depth is a tile's positions

template <class T>
__global__ void __launch_bounds__(kPlainWarps* kWarp) plain_expert_kernel(const __grid_constant__ ExpertGemmCall p) {
  begin_overlapped();
  const ExpertTile tile(p, kPlainRows);
  if (tile.run == nullptr) return;
  const int begin = tile.positions.begin + static_cast<int>(blockIdx.z) * kPlainPositions;
  const int end = min(tile.positions.end, begin + kPlainPositions);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int end_row = min(tile.row + kPlainRows, tile.run->rows);
  for (int row = tile.row + warp; row < end_row; row += kPlainWarps) {
    const T* weight = reinterpret_cast<const T*>(tile.run->data) + static_cast<std::size_t>(row) * p.depth;
    for (int position = begin; position < end; ++position) {
      const T* x = reinterpret_cast<const T*>(x_of(p, position, sizeof(T)));
      float sum = 0;
      for (int k = lane; k < p.depth; k += kWarp) sum = fmaf(widen(x[k]), widen(weight[k]), sum);
      sum = warp_sum(sum);
      if (lane == 0) finish(p, tile.positions.expert, position, tile.run->row_begin + row, sum);
    }
  }
}

// ---- launches

// Tiles of rows as the expert with most of them has; tiles of positions as the experts may have. Where there are fewer
// a block leaves at once.
dim3 grid_of(const ExpertGemmCall& call, int tile_rows, int depth = 1) {
  int most = 0, tiles = 0;
  for (int i = 0; i < call.count; ++i) {
    const bool is_new = i == 0 || call.runs[i].expert != call.runs[i - 1].expert;
    tiles = (is_new ? 0 : tiles) + ceil_div(call.runs[i].rows, tile_rows);
    most = std::max(most, tiles);
  }
  // Tiles of experts between the first and the last that the call leaves out stand among those of the others.
  const int all = call.runs[call.count - 1].expert - call.runs[0].expert + 1;
  return {static_cast<unsigned>(most), static_cast<unsigned>(call.routes.most_tiles(all)),
          static_cast<unsigned>(depth)};
}

using FewShape = Shape<4, 1, 1, kFewPositions / 8, 6, 3>;
using FewCodedShape = Shape<4, 1, 1, kFewPositions / 8, 8, 4>;
using ManyShape = Shape<2, 2, 4, kManyPositions / 16, 3, 2>;

template <class Weight, class Shape>
void launch_shape(CUstream_st* stream, const ExpertGemmCall& call) {
  constexpr int kBytes = kSharedBytes<Weight, Shape>;
  // More than 48 KiB of shared memory is to be had on request only; a refusal shows in the launch.
  [[maybe_unused]] static const cudaError_t asked =
      cudaFuncSetAttribute(tiled_expert_kernel<Weight, Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  launch_overlapped(grid_of(call, Shape::kRows), Shape::kThreads, kBytes, stream, tiled_expert_kernel<Weight, Shape>,
                    call);
}

template <class T>
void launch_tiled(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.tile_positions() == kFewPositions) {
    launch_shape<PlainRowsOfWeight<T, FewShape>, FewShape>(stream, call);
  } else {
    launch_shape<PlainRowsOfWeight<T, ManyShape>, ManyShape>(stream, call);
  }
}

template <class Codes, class Scales>
void launch_coded(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.tile_positions() == kFewPositions) {
    launch_shape<CodedRowsOfWeight<Codes, Scales, FewCodedShape>, FewCodedShape>(stream, call);
  } else {
    launch_shape<CodedRowsOfWeight<Codes, Scales, ManyShape>, ManyShape>(stream, call);
  }
}

template <class T>
void launch_plain(CUstream_st* stream, const ExpertGemmCall& call) {
  const dim3 grid = grid_of(call, kPlainRows, ceil_div(call.routes.tile_positions(), kPlainPositions));
  launch_overlapped(grid, kPlainWarps * kWarp, 0, stream, plain_expert_kernel<T>, call);
}

}  // namespace

void tiled_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows == 0 || call.count == 0) return;
  if (call.tiles.quantised()) {
    with_codes_and_scales(call.tiles,
                          [&]<class Codes, class Scales>(Codes, Scales) { launch_coded<Codes, Scales>(stream, call); });
  } else if (call.dtype == DType::kBF16) {
    launch_tiled<BFloat16>(stream, call);
  } else {
    launch_tiled<Float16>(stream, call);
  }
}

void plain_expert_gemm(CUstream_st* stream, const ExpertGemmCall& call) {
  if (call.routes.rows == 0 || call.count == 0) return;
  with_element(call.dtype, [&]<class T>(T) { launch_plain<T>(stream, call); });
}

}  // namespace computron::kernels::cuda
