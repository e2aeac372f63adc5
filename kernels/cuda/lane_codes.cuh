// Codes of a quantised weight in registers, as tensor cores take the values (quantised_tiles.h, codes.h).
#pragma once

#include "kernels/cuda/codes.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quantised_tiles.h"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {

// What a lane has of some units, and the scales that belong to it.
template <class Codes, class Scales, int kUnits>
struct LaneCodes {
  static constexpr int kSlicesOfUnit = 8 / Codes::kBits;
  static constexpr int kSlices = kUnits * kSlicesOfUnit;
  static constexpr int kPieceWords = Codes::kBits / 4;

  uint4 codes[kUnits];
  typename Scales::Two scales[kSlices];

  // From `first` on, the k with which a unit begins.
  __device__ void load(const QuantisedTiles& tiles, const std::byte* tile, int first, int lane) {
    constexpr int kUnitDepth = kSlicesOfUnit * QuantisedTiles::kSlice;
    const std::byte* from = tile + static_cast<std::size_t>(first / kUnitDepth) * QuantisedTiles::kUnitBytes;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const bool there = first + i * kUnitDepth < tiles.depth;
      codes[i] = there ? load_once(from + i * QuantisedTiles::kUnitBytes + lane * QuantisedTiles::kLaneBytes) : uint4{};
    }
    load_scales(tiles, tile, first, lane);
  }
  __device__ void load_scales(const QuantisedTiles& tiles, const std::byte* tile, int first, int lane) {
    const auto* two = reinterpret_cast<const typename Scales::Two*>(tile + tiles.scales_at()) + lane / 4;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      const int k = first + s * QuantisedTiles::kSlice + lane % 4 * QuantisedTiles::kPieceK;
      scales[s] = k < tiles.depth ? __ldg(two + static_cast<std::size_t>(tiles.group_of(k)) * (kTileRows / 2)) : 0;
    }
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
