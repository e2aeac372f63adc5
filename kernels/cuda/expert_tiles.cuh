// What kernels of experts share: what a block multiplies, how weights come through shared memory into registers of
// tensor cores, and how sums leave.
#pragma once

#include <algorithm>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/lane_codes.cuh"
#include "kernels/cuda/mma.cuh"

namespace computron::kernels::cuda {

// Result `n`, a row of the weight, of a position.
__device__ inline void finish(const ExpertGemmCall& p, int expert, int position, int n, float sum) {
  if (p.biases != nullptr) sum += p.biases[static_cast<std::size_t>(expert) * p.out_columns + n];
  store(activate(p.activation, sum), p.out, p.out_dtype, static_cast<std::size_t>(position) * p.out_columns + n);
}

// What a block multiplies: a tile of rows of an expert's weight, numbered through its runs, and a tile of positions.
struct ExpertTile {
  PositionTile positions;
  const ExpertRun* run = nullptr;  // null: there is nothing to multiply
  int row = 0;                     // of the run, the first

  // Of a tile of positions the blockIdx.z-th piece.
  __device__ ExpertTile(const ExpertGemmCall& p, int tile_rows, int piece_positions) {
    const int first = p.runs[0].expert, last = p.runs[p.count - 1].expert;
    if (p.routes.all_is_one()) {
      const int begin = static_cast<int>(blockIdx.y) * p.routes.tile_positions;
      positions = {0, begin, min(begin + p.routes.tile_positions, p.routes.rows)};
    } else {
      const int before = first == 0 ? 0 : p.routes.first_tiles[first];
      const int place = before + static_cast<int>(blockIdx.y);
      if (place >= p.routes.most_tiles(p.routes.experts)) return;
      positions = p.routes.tiles[place];
    }
    positions.begin += static_cast<int>(blockIdx.z) * piece_positions;
    positions.end = min(positions.end, positions.begin + piece_positions);
    if (positions.begin >= positions.end) return;
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

__device__ inline const std::byte* x_of(const ExpertGemmCall& p, int position, std::size_t element_bytes) {
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
__device__ inline int octet_place(int row, int piece) {
  const int slice = piece / 4, lane = row * 4 + piece % 4;
  return slice * kWarp + (lane ^ slice * 4);
}
__device__ inline int octet_place_of_lane(int slice, int lane) { return slice * kWarp + (lane ^ slice * 4); }

// A tile's rows of a plain weight.
template <class T, class Shape>
struct PlainRowsOfWeight {
  using Element = T;
  static constexpr int kPieces = Shape::kRows * kRowPieces;  // of a step, in shared memory

  const T* from;  // this thread's first piece
  int rows;       // from that piece's row on
  int depth;
  unsigned zero = blockDim.y - 1;  // what the compiler cannot know

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
      next[i].load_scales(typename Lane::Tile(tiles, from + tile * tile_bytes, lane), first);
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

// Tiles of rows as the expert with most of them has; tiles of positions as the experts may have. Where there are fewer
// a block leaves at once.
inline dim3 grid_of(const ExpertGemmCall& call, int tile_rows, int piece_positions) {
  int most = 0, tiles = 0;
  for (int i = 0; i < call.count; ++i) {
    const bool is_new = i == 0 || call.runs[i].expert != call.runs[i - 1].expert;
    tiles = (is_new ? 0 : tiles) + ceil_div(call.runs[i].rows, tile_rows);
    most = std::max(most, tiles);
  }
  // Tiles of experts between the first and the last that the call leaves out stand among those of the others.
  const int all = call.runs[call.count - 1].expert - call.runs[0].expert + 1;
  return {static_cast<unsigned>(most), static_cast<unsigned>(call.routes.most_tiles(all)),
          static_cast<unsigned>(ceil_div(call.routes.tile_positions, piece_positions))};
}

}  // namespace computron::kernels::cuda
