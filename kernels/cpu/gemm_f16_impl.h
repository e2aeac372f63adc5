// The template behind gemm_f16_avx2 and gemm_f16_avx512 (gemm_f16.h). Everything is local to the including file: code
// compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm_f16.h"

namespace computron::kernels {
namespace {

// Lanes: V, kCount; load, store, splat, fma, widen_f16<kHalf>; kSums: vectors that registers hold beside weights and a
// row; kDirectRows: which go without a widened copy.
template <class Lanes>
class F16Gemm {
  using V = typename Lanes::V;
  static constexpr int kLanes = Lanes::kCount;
  static constexpr int kBlockVectors = kRowBlock / kLanes;
  static constexpr int kDirectKSlice = 512;
  static constexpr int kMaxGroup = Lanes::kDirectRows < 6 ? Lanes::kDirectRows : 6;

 public:
  F16Gemm(const float* x, int rows, int depth, int columns, float* scratch)
      : x_(x), rows_(rows), depth_(depth), columns_(columns), scratch_(scratch) {}

  void run(const std::byte* weight, float* tile) const {
    if (rows_ <= Lanes::kDirectRows) turn_rows();
    for (int n = 0; n < columns_; n += kRowBlock) {
      const auto* block = reinterpret_cast<const std::uint32_t*>(weight) + static_cast<std::size_t>(n) * (depth_ / 2);
      rows_ <= Lanes::kDirectRows ? run_direct(block, tile + n) : run_widened(block, tile + n);
    }
  }

 private:
  // Pairs of float16, as packed: [depth / 2][64]; multiplied with transposed rows of x.
  struct Packed {
    static constexpr bool kTurnedRows = true;
    const std::uint32_t* pairs;
    template <int kHalf>
    V load(int k, int v) const {
      return Lanes::template widen_f16<kHalf>(pairs + static_cast<std::size_t>(k / 2) * kRowBlock + v * kLanes);
    }
  };
  // [depth][64].
  struct Widened {
    static constexpr bool kTurnedRows = false;
    const float* weight;
    template <int kHalf>
    V load(int k, int v) const {
      return Lanes::load(weight + k * kRowBlock + v * kLanes);
    }
  };

  // As many vectors of a block as registers for their sums allow, a power of two.
  static constexpr int vectors_beside(int rows) {
    int vectors = kBlockVectors;
    while (vectors * rows > Lanes::kSums) vectors /= 2;
    return vectors;
  }

  // Rows of x go in groups of six at most. Group after group, each as [depth][rows of the group]: rows that lie a power
  // of two apart would fight for one set of the cache.
  int rows_of_group(int m) const {
    const int left = rows_ - m;
    return ceil_div(left, ceil_div(left, kMaxGroup));
  }

  void turn_rows() const {
    for (int m = 0, group; m < rows_; m += group) {
      group = rows_of_group(m);
      float* to = scratch_ + static_cast<std::size_t>(m) * depth_;
      for (int i = 0; i < group; ++i) {
        const float* row = x_ + static_cast<std::size_t>(m + i) * depth_;
        for (int k = 0; k < depth_; ++k) to[k * group + i] = row[k];
      }
    }
  }

  // In K slices that stay in the second cache while the groups pass.
  void run_direct(const std::uint32_t* block, float* tile) const {
    const int step = rows_ <= kMaxGroup ? depth_ : kDirectKSlice;
    for (int k = 0; k < depth_; k += step) {
      const int slice = depth_ - k < step ? depth_ - k : step;
      for (int m = 0, group; m < rows_; m += group) {
        group = rows_of_group(m);
        run_group(group, {block + static_cast<std::size_t>(k / 2) * kRowBlock},
                  scratch_ + static_cast<std::size_t>(m) * depth_ + k * group, slice,
                  tile + static_cast<std::size_t>(m) * columns_, k == 0);
      }
    }
  }

  template <int kRows = 1>
  void run_group(int rows, Packed packed, const float* x, int depth, float* tile, bool first) const {
    if constexpr (kRows < kMaxGroup) {
      if (rows > kRows) return run_group<kRows + 1>(rows, packed, x, depth, tile, first);
    }
    multiply_block<kRows, vectors_beside(kRows)>(packed, x, depth, tile, first);
  }

  void run_widened(const std::uint32_t* block, float* tile) const {
    for (int k = 0; k < depth_; k += kF16KSlice) {
      const int slice = depth_ - k < kF16KSlice ? depth_ - k : kF16KSlice;
      widen({block + static_cast<std::size_t>(k / 2) * kRowBlock}, slice);
      const auto part = [&](auto multiply, int m) {
        (this->*multiply)({scratch_}, x_ + static_cast<std::size_t>(m) * depth_ + k, slice,
                          tile + static_cast<std::size_t>(m) * columns_, k == 0);
      };
      int m = 0;
      for (; m + 6 <= rows_; m += 6) part(&F16Gemm::multiply_block<6, vectors_beside(6), Widened>, m);
      for (; m + 2 <= rows_; m += 2) part(&F16Gemm::multiply_block<2, vectors_beside(2), Widened>, m);
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
      const std::size_t at =
          Source::kTurnedRows ? (k + kHalf) * kRows + m : static_cast<std::size_t>(m) * depth_ + k + kHalf;
      const V element = Lanes::splat(x[at]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Lanes::fma(element, weight[v], sums[m][v]);
    }
  }

  const float* x_;
  int rows_, depth_, columns_;
  float* scratch_;
};

}  // namespace
}  // namespace computron::kernels
