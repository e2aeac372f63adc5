// Codes of a quantised weight in registers, as tensor cores take the values (quantised_tiles.h, codes.h).
#pragma once

#include "kernels/cuda/codes.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quantised_tiles.h"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {

// Where a lane finds its codes and scales of a tile.
template <class Codes, class Scales>
struct LaneTile {
  using Two = typename Scales::Two;
  static constexpr int kUnitDepth = 8 / Codes::kBits * QuantisedTiles::kSlice;

  const QuantisedTiles& tiles;
  const std::byte* codes;   // of the first unit
  const std::byte* scales;  // of the first group
  int piece;                // that it has of a slice
  int depth;

  __device__ LaneTile(const QuantisedTiles& of, const std::byte* tile, int lane) : tiles(of), piece(lane % 4) {
    go_to(tile, of.depth, lane);
  }
  // Of a depth of 0 it finds zeros.
  __device__ void go_to(const std::byte* tile, int to_depth, int lane) {
    codes = in_registers(tile + lane * QuantisedTiles::kLaneBytes);
    scales = in_registers(tile + tiles.scales_at() + lane / 4 * sizeof(Two));
    depth = to_depth;
  }

  // Of the i-th unit from k = first on, with which one begins; zeros behind the depth.
  __device__ uint4 load_codes(int first, int i) const {
    const std::byte* from = codes + first / kUnitDepth * QuantisedTiles::kUnitBytes;
    uint4 unit;
    load_once(from + i * QuantisedTiles::kUnitBytes, first + i * kUnitDepth < depth, unit);
    return unit;
  }
  // Of the i-th slice.
  __device__ Two load_scales(int first, int i) const {
    const int k = first + i * QuantisedTiles::kSlice;
    const auto own = static_cast<unsigned>(k / QuantisedTiles::kPieceK + piece);
    const std::size_t group = tiles.group_of_piece(own);
    Two two;
    load_once(scales + group * (kTileRows / 2 * sizeof(Two)), k + piece * QuantisedTiles::kPieceK < depth, two);
    return two;
  }
};

// What a lane has of some units, and the scales that belong to it.
template <class Codes, class Scales, int kUnits>
struct LaneCodes {
  using Tile = LaneTile<Codes, Scales>;
  static constexpr int kSlicesOfUnit = 8 / Codes::kBits;
  static constexpr int kSlices = kUnits * kSlicesOfUnit;
  static constexpr int kPieceWords = Codes::kBits / 4;

  uint4 codes[kUnits];
  typename Scales::Two scales[kSlices];

  // From `first` on, the k with which a unit begins.
  __device__ void load(const Tile& tile, int first) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) codes[i] = tile.load_codes(first, i);
    load_scales(tile, first);
  }
  __device__ void load_scales(const Tile& tile, int first) {
#pragma unroll
    for (int s = 0; s < kSlices; ++s) scales[s] = tile.load_scales(first, s);
  }

  // Pairs of the piece of K slice `slice` of row lane / 4 + 8 × `row`.
  __device__ void values(int slice, int row, unsigned (&out)[4]) const {
    const uint4& unit = codes[slice / kSlicesOfUnit];
    const unsigned words[4] = {unit.x, unit.y, unit.z, unit.w};
    Codes::pairs(words + (slice % kSlicesOfUnit * 2 + row) * kPieceWords, out);
    const auto factor = Scales::factor(scales[slice], row);
#pragma unroll
    for (unsigned& pair : out) pair = Scales::scaled(pair, factor);
  }
};

// body(Codes{}, Scales{}) with the types that stand for those of `tiles`.
template <class Body>
void with_codes_and_scales(const QuantisedTiles& tiles, Body&& body) {
  with_codes(tiles.codes, [&]<class Codes>(Codes codes) {
    with_scales(tiles.scales, [&]<class Scales>(Scales scales) { body(codes, scales); });
  });
}

}  // namespace computron::kernels::cuda
