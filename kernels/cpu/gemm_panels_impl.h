// The GEMM of gemm_panels.h, written once for the lanes and the element type of the file that includes it. Everything
// is local to that file: what is compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstdint>

#include "computron/base/vectors.h"
#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {
namespace {

// Format: V, kCount lanes; Unit, what a column has for one step: an element, or a pair that follow each other in k;
// kDepth, k of a step; kParts that are multiplied one after the other; Row, the part of x that meets one of them;
// load<part>(Unit*) of a weight; splat(Row); multiply_add(x, w, sum); zero, load_sum, store of sums; kSums: vectors of
// them that registers hold beside weights and a row; kMaxGroup: rows that meet a weight together.
template <class Format>
class PanelGemm {
  using V = typename Format::V;
  using Row = typename Format::Row;
  using Unit = typename Format::Unit;
  static constexpr int kLanes = Format::kCount;
  static constexpr int kBlockVectors = kRowBlock / kLanes;
  static constexpr int kMaxGroup = Format::kMaxGroup;
  static constexpr int kLine = 64;
  static constexpr std::size_t kUnitBytes = kRowBlock * sizeof(Unit);
  static constexpr int kUnitLines = kUnitBytes / kLine;

 public:
  explicit PanelGemm(const PanelCall& call)
      : call_(call),
        steps_(call.depth / Format::kDepth),
        row_stride_(static_cast<std::size_t>(steps_) * Format::kParts),
        passes_(count_passes()) {}

  void run() const {
    const bool once = passes_ == 1 && call_.expansion == nullptr;
    const std::byte* block = call_.weight;
    for (int n = 0; n < call_.columns; n += kRowBlock, block += call_.block_bytes(steps_ * kUnitBytes)) {
      once ? run_once(block, call_.tile + n) : run_slices(block, call_.tile + n);
    }
  }

 private:
  // The lines that memory is asked for meanwhile: with each step those at `next`, which goes on by `stride` bytes.
  struct Ahead {
    const char* next;
    std::size_t stride;
  };
  // What all groups of rows meet: `steps` of a block, from step `first` of the rows on.
  struct Slice {
    const Unit* units;
    int first, steps;
    float* tile;
  };

  // As many vectors of a block as registers for their sums allow, a power of two.
  static constexpr int vectors_beside(int rows) {
    int vectors = kBlockVectors;
    while (vectors * rows > Format::kSums) vectors /= 2;
    return vectors;
  }

  int rows_of_group(int m) const {
    const int left = call_.rows - m;
    return ceil_div(left, ceil_div(left, kMaxGroup));
  }

  // How often all groups together pass a block.
  int count_passes() const {
    int passes = 0;
    for (int m = 0, group; m < call_.rows; m += group) {
      group = rows_of_group(m);
      passes += kBlockVectors / vectors_beside(group);
    }
    return passes;
  }

  void run_once(const std::byte* block, float* tile) const {
    Ahead ahead{reinterpret_cast<const char*>(block) + call_.blocking.ahead_bytes, kUnitBytes};
    run_groups<kUnitLines, /*kAgain=*/false>(slice_at(block, 0, steps_, tile), ahead);
  }

  // Many rows that are long go through longer slices, so that more of each is read in one go. What goes through scratch
  // memory is cut smaller: few rows read it from the first cache.
  int most_steps() const {
    const bool many = call_.rows >= PanelBlocking::kManyRows;
    if (call_.expansion != nullptr) return many ? PanelBlocking::kMostSlice : PanelBlocking::kShortSlice;
    const int usual = call_.blocking.slice_bytes / static_cast<int>(kUnitBytes);
    if (!many || steps_ < PanelBlocking::kLongRow || usual > PanelBlocking::kMostSlice) return usual;
    return PanelBlocking::kMostSlice;
  }

  // While the passes over a slice use it each asks for its part of the next, so that memory is read all the time. The
  // processor drops some of these: the first pass asks again.
  void run_slices(const std::byte* block, float* tile) const {
    const int most = most_steps();
    for (int k = 0, count; k < steps_; k += count) {
      count = steps_ - k < most ? steps_ - k : most;
      if (call_.expansion != nullptr) {
        run_expanded(block, k, count, tile);
        continue;
      }
      const std::byte* units = block + k * kUnitBytes;
      Ahead ahead{reinterpret_cast<const char*>(units) + count * kUnitBytes, kUnitBytes / passes_};
      const auto slice = slice_at(units, k, count, tile);
      ahead.stride > kLine ? run_groups<2, true>(slice, ahead) : run_groups<1, true>(slice, ahead);
    }
  }

  // The expansion asked memory ahead.
  void run_expanded(const std::byte* block, int k, int count, float* tile) const {
    const std::byte* units = call_.expanded(block, k * Format::kDepth, count * Format::kDepth);
    Ahead nothing{reinterpret_cast<const char*>(units), 0};
    run_groups<0, /*kAgain=*/false>(slice_at(units, k, count, tile), nothing);
  }

  static Slice slice_at(const std::byte* units, int first, int count, float* tile) {
    return {reinterpret_cast<const Unit*>(units), first, count, tile};
  }

  // kAgain: the first of the passes over the slice asks again for what is call_.blocking.again_bytes ahead.
  template <int kLines, bool kAgain>
  void run_groups(const Slice& slice, Ahead& ahead) const {
    int m = rows_of_group(0);
    run_group<kLines, kAgain>(m, slice, 0, ahead);
    for (int group; m < call_.rows; m += group) {
      group = rows_of_group(m);
      run_group<kLines, false>(group, slice, m, ahead);
    }
  }

  template <int kLines, bool kAgain, int kRows = 1>
  void run_group(int rows, const Slice& slice, int m, Ahead& ahead) const {
    if constexpr (kRows < kMaxGroup) {
      if (rows > kRows) return run_group<kLines, kAgain, kRows + 1>(rows, slice, m, ahead);
    }
    constexpr int kVectors = vectors_beside(kRows);
    const Row* x = reinterpret_cast<const Row*>(call_.x) + m * row_stride_ + slice.first * Format::kParts;
    float* tile = slice.tile + static_cast<std::size_t>(m) * call_.columns;
    const bool from_zero = slice.first == 0;
    multiply<kRows, kVectors, kLines, kAgain>(slice.units, x, slice.steps, tile, from_zero, ahead);
    for (int v = kVectors * kLanes; v < kRowBlock; v += kVectors * kLanes) {
      multiply<kRows, kVectors, kLines, false>(slice.units + v, x, slice.steps, tile + v, from_zero, ahead);
    }
  }

  // kRows rows × kVectors vectors of a block go on by `steps`; partial sums wait in the tile.
  template <int kRows, int kVectors, int kLines, bool kAgain>
  void multiply(const Unit* unit, const Row* x, int steps, float* tile, bool from_zero, Ahead& ahead) const {
    const auto columns = static_cast<std::size_t>(call_.columns);
    V sums[kRows][kVectors];
    // Without the pragmas GCC 12 has the sums pass through memory before and after the steps.
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = from_zero ? Format::zero() : Format::load_sum(tile + m * columns + v * kLanes);
      }
    }
    // What is asked into the first cache holds one of its few slots for misses meanwhile.
    auto [next, stride] = ahead;
    const std::size_t again = call_.blocking.again_bytes;
    for (int k = 0; k < steps; ++k, unit += kRowBlock, next += stride) {
      for (int line = 0; line < kLines; ++line) _mm_prefetch(next + line * kLine, _MM_HINT_T1);
      for (int line = 0; kAgain && line < kUnitLines; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(unit) + again + line * kLine, _MM_HINT_T1);
      }
      add_step(unit, x + k * Format::kParts, sums);
    }
    ahead.next = next;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) Format::store(tile + m * columns + v * kLanes, sums[m][v]);
    }
  }

  template <int kPart = 0, int kRows, int kVectors>
  __attribute__((always_inline)) void add_step(const Unit* unit, const Row* x, V (&sums)[kRows][kVectors]) const {
    add_products<kPart>(unit, x + kPart, sums);
    if constexpr (kPart + 1 < Format::kParts) add_step<kPart + 1>(unit, x, sums);
  }

  template <int kPart, int kRows, int kVectors>
  __attribute__((always_inline)) void add_products(const Unit* unit, const Row* x, V (&sums)[kRows][kVectors]) const {
    // What there is less of is kept in registers as a whole.
    if constexpr (kRows < kVectors) {
      typename Format::W elements[kRows];
      for (int m = 0; m < kRows; ++m) elements[m] = Format::splat(x[m * row_stride_]);
      for (int v = 0; v < kVectors; ++v) {
        auto weight = Format::template load<kPart>(unit + v * kLanes);
        // Into a register: else the compiler has each product load it again (three rows of float32: 91 GFLOP/s, not
        // 108).
#if defined(__x86_64__)
        if constexpr (kRows > 1) asm("" : "+v"(weight));
#endif
        for (int m = 0; m < kRows; ++m) sums[m][v] = Format::multiply_add(elements[m], weight, sums[m][v]);
      }
      return;
    }
    typename Format::W weight[kVectors];
    for (int v = 0; v < kVectors; ++v) weight[v] = Format::template load<kPart>(unit + v * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const auto element = Format::splat(x[m * row_stride_]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Format::multiply_add(element, weight[v], sums[m][v]);
    }
  }

  const PanelCall& call_;
  int steps_;  // of a block
  std::size_t row_stride_;
  int passes_;
};

}  // namespace
}  // namespace computron::kernels
