// The template behind gemm_f16_avx2 and gemm_f16_avx512 (gemm_f16.h). Everything is local to the including file: code
// compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm_f16.h"

namespace computron::kernels {
namespace {

// Lanes: V, kCount; load, store, splat, fma, widen_f16<kHalf>; kDirectRows (which go without a widened copy), kRows and
// kVectors of a register block.
template <class Lanes>
class F16Gemm {
  using V = typename Lanes::V;
  static constexpr int kLanes = Lanes::kCount;
  static constexpr int kBlockVectors = kRowBlock / kLanes;

 public:
  F16Gemm(const float* x, int rows, int depth, int columns, float* scratch)
      : x_(x), rows_(rows), depth_(depth), columns_(columns), scratch_(scratch) {}

  void run(const std::byte* weight, float* tile) const {
    for (int n = 0; n < columns_; n += kRowBlock) {
      const auto* block = reinterpret_cast<const std::uint32_t*>(weight) + static_cast<std::size_t>(n) * (depth_ / 2);
      rows_ <= Lanes::kDirectRows ? run_direct(block, tile + n) : run_widened(block, tile + n);
    }
  }

 private:
  // Pairs of float16, as packed: [depth / 2][64].
  struct Packed {
    const std::uint32_t* pairs;
    template <int kHalf>
    V load(int k, int v) const {
      return Lanes::template widen_f16<kHalf>(pairs + static_cast<std::size_t>(k / 2) * kRowBlock + v * kLanes);
    }
  };
  // [depth][64].
  struct Widened {
    const float* weight;
    template <int kHalf>
    V load(int k, int v) const {
      return Lanes::load(weight + k * kRowBlock + v * kLanes);
    }
  };

  void run_direct(const std::uint32_t* block, float* tile) const {
    const Packed packed{block};
    switch (rows_) {
      case 1:
        return multiply_block<1, kBlockVectors>(packed, x_, depth_, tile, /*first=*/true);
      case 2:
        return multiply_block<2, 4>(packed, x_, depth_, tile, /*first=*/true);
      case 3:
        return multiply_block<3, Lanes::kVectors>(packed, x_, depth_, tile, /*first=*/true);
      case 4:
        return multiply_block<4, Lanes::kVectors>(packed, x_, depth_, tile, /*first=*/true);
      case 5:
        return multiply_block<5, Lanes::kVectors>(packed, x_, depth_, tile, /*first=*/true);
      case 6:
        return multiply_block<6, Lanes::kVectors>(packed, x_, depth_, tile, /*first=*/true);
    }
  }

  void run_widened(const std::uint32_t* block, float* tile) const {
    for (int k = 0; k < depth_; k += kF16DepthChunk) {
      const int chunk = depth_ - k < kF16DepthChunk ? depth_ - k : kF16DepthChunk;
      widen({block + static_cast<std::size_t>(k / 2) * kRowBlock}, chunk);
      const auto part = [&](auto multiply, int m) {
        (this->*multiply)({scratch_}, x_ + static_cast<std::size_t>(m) * depth_ + k, chunk,
                          tile + static_cast<std::size_t>(m) * columns_, k == 0);
      };
      int m = 0;
      for (; m + 6 <= rows_; m += 6) part(&F16Gemm::multiply_block<6, Lanes::kVectors, Widened>, m);
      for (; m + 2 <= rows_; m += 2) part(&F16Gemm::multiply_block<2, 4, Widened>, m);
      if (m < rows_) part(&F16Gemm::multiply_block<1, kBlockVectors, Widened>, m);
    }
  }

  void widen(Packed packed, int depth) const {
    for (int k = 0; k < depth; k += 2) {
      float* to = scratch_ + k * kRowBlock;
      for (int v = 0; v < kBlockVectors; ++v, to += kLanes) {
        Lanes::store(to, packed.template load<0>(k, v));
        Lanes::store(to + kRowBlock, packed.template load<1>(k, v));
      }
    }
  }

  // kRows rows × the 64 of a block go on by `depth` products; partial sums wait in the tile.
  template <int kRows, int kVectors, class Source>
  void multiply_block(Source source, const float* x, int depth, float* tile, bool first) const {
    for (int v = 0; v < kBlockVectors; v += kVectors) {
      multiply<kRows, kVectors>(source, v, x, depth, tile + v * kLanes, first);
    }
  }

  template <int kRows, int kVectors, class Source>
  void multiply(Source source, int first_vector, const float* x, int depth, float* tile, bool first) const {
    V sums[kRows][kVectors];
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = first ? Lanes::splat(0) : Lanes::load(tile + m * columns_ + v * kLanes);
      }
    }
    for (int k = 0; k < depth; k += 2) {
      add_products<0>(source, first_vector, k, x, sums);
      add_products<1>(source, first_vector, k, x, sums);
    }
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) Lanes::store(tile + m * columns_ + v * kLanes, sums[m][v]);
    }
  }

  // Of k + kHalf.
  template <int kHalf, int kRows, int kVectors, class Source>
  __attribute__((always_inline)) void add_products(Source source, int first_vector, int k, const float* x,
                                                   V (&sums)[kRows][kVectors]) const {
    V weight[kVectors];
    for (int v = 0; v < kVectors; ++v) weight[v] = source.template load<kHalf>(k + kHalf, first_vector + v);
    for (int m = 0; m < kRows; ++m) {
      const V element = Lanes::splat(x[static_cast<std::size_t>(m) * depth_ + k + kHalf]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Lanes::fma(element, weight[v], sums[m][v]);
    }
  }

  const float* x_;
  int rows_, depth_, columns_;
  float* scratch_;
};

}  // namespace
}  // namespace computron::kernels
