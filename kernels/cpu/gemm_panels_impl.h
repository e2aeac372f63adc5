// The GEMM of gemm_panels.h, written once for the lanes and the element type of the file that includes it. Everything
// is local to that file: what is compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {
namespace {

// Format: V, kCount lanes and Row, the part of x that meets one step of a weight; kBytes of an element and kSteps of a
// unit; load<step>(unit) of a weight; splat(Row); multiply_add(x, w, sum); zero, load_sum, store of sums; kSums:
// vectors of them that registers hold beside weights and a row; Wide: what more than kDirectRows rows have a slice of
// the weight copied to, Format itself where that is never worth it.
template <class Format>
class PanelGemm {
  using V = typename Format::V;
  using Row = typename Format::Row;
  using Wide = typename Format::Wide;
  static constexpr bool kWidens = !std::is_same_v<Format, Wide>;
  static constexpr int kLanes = Format::kCount;
  static constexpr int kBlockVectors = kRowBlock / kLanes;
  static constexpr int kMaxGroup = 6;  // rows that meet a weight together
  static constexpr int kLine = 64;
  static constexpr std::size_t kUnitBytes = kRowBlock * sizeof(std::uint32_t);
  static constexpr int kUnitLines = kUnitBytes / kLine;

 public:
  explicit PanelGemm(const PanelCall& call)
      : call_(call),
        units_(static_cast<int>(call.depth * Format::kBytes / sizeof(std::uint32_t))),
        row_steps_(static_cast<std::size_t>(units_) * Format::kSteps),
        passes_(count_passes()) {}

  void run() const {
    const bool once = passes_ == 1 && call_.expansion == nullptr;
    const std::byte* block = call_.weight;
    for (int n = 0; n < call_.columns; n += kRowBlock, block += call_.block_bytes(units_ * kUnitBytes)) {
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
    const std::uint32_t* units;
    int first, steps;
    float* tile;
  };

  // Whether slices are copied as Wide.
  bool widens() const {
    if constexpr (kWidens) return call_.rows > Format::kDirectRows;
    return false;
  }

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
    run_groups<Format, kUnitLines, /*kAgain=*/false>(slice_at(block, 0, units_, tile), ahead);
  }

  // What goes through scratch memory is cut smaller: few rows read it from the first cache.
  int most_units() const {
    if (call_.expansion == nullptr && !widens()) return call_.blocking.slice;
    return call_.rows < PanelBlocking::kManyRows ? PanelBlocking::kShortSlice : PanelBlocking::kMostSlice;
  }

  // While the passes over a slice use it each asks for its part of the next, so that memory is read all the time. The
  // processor drops some of these: the first pass asks again.
  void run_slices(const std::byte* block, float* tile) const {
    const int most = most_units();
    for (int u = 0, count; u < units_; u += count) {
      count = units_ - u < most ? units_ - u : most;
      if (call_.expansion != nullptr) {
        run_expanded(block, u, count, tile);
        continue;
      }
      const std::byte* units = block + u * kUnitBytes;
      Ahead ahead{reinterpret_cast<const char*>(units) + count * kUnitBytes, kUnitBytes / passes_};
      const Slice slice = slice_at(units, u, count, tile);
      passes_ <= 3 ? run_slice<2>(slice, ahead) : run_slice<1>(slice, ahead);
    }
  }

  // The expansion asked memory ahead.
  void run_expanded(const std::byte* block, int u, int count, float* tile) const {
    constexpr int kUnitDepth = sizeof(std::uint32_t) / Format::kBytes;
    const std::byte* units = call_.expanded(block, u * kUnitDepth, count * kUnitDepth);
    Ahead nothing{reinterpret_cast<const char*>(units), 0};
    run_groups<Format, 0, /*kAgain=*/false>(slice_at(units, u, count, tile), nothing);
  }

  static Slice slice_at(const std::byte* units, int first, int count, float* tile) {
    return {reinterpret_cast<const std::uint32_t*>(units), first * Format::kSteps, count * Format::kSteps, tile};
  }

  template <int kLines>
  void run_slice(Slice slice, Ahead& ahead) const {
    if constexpr (kWidens) {
      if (widens()) {
        ahead.stride /= Format::kSteps;
        slice.units = widened(slice);
        return run_groups<Wide, kLines, /*kAgain=*/false>(slice, ahead);
      }
    }
    run_groups<Format, kLines, /*kAgain=*/true>(slice, ahead);
  }

  const std::uint32_t* widened(const Slice& slice) const {
    auto* to = reinterpret_cast<float*>(call_.scratch);
    const std::uint32_t* units = slice.units;
    for (int k = 0; k < slice.steps; k += 2, units += kRowBlock, to += 2 * kRowBlock) {
      for (int v = 0; v < kRowBlock; v += kLanes) {
        Format::store(to + v, Format::template load<0>(units + v));
        Format::store(to + kRowBlock + v, Format::template load<1>(units + v));
      }
    }
    return reinterpret_cast<const std::uint32_t*>(call_.scratch);
  }

  // kAgain: the first of the passes over the slice asks again for what is call_.blocking.again_bytes ahead.
  template <class Of, int kLines, bool kAgain>
  void run_groups(const Slice& slice, Ahead& ahead) const {
    int m = rows_of_group(0);
    run_group<Of, kLines, kAgain>(m, slice, 0, ahead);
    for (int group; m < call_.rows; m += group) {
      group = rows_of_group(m);
      run_group<Of, kLines, false>(group, slice, m, ahead);
    }
  }

  template <class Of, int kLines, bool kAgain, int kRows = 1>
  void run_group(int rows, const Slice& slice, int m, Ahead& ahead) const {
    if constexpr (kRows < kMaxGroup) {
      if (rows > kRows) return run_group<Of, kLines, kAgain, kRows + 1>(rows, slice, m, ahead);
    }
    constexpr int kVectors = vectors_beside(kRows);
    const Row* x = reinterpret_cast<const Row*>(call_.x) + m * row_steps_ + slice.first;
    float* tile = slice.tile + static_cast<std::size_t>(m) * call_.columns;
    const bool from_zero = slice.first == 0;
    multiply<Of, kRows, kVectors, kLines, kAgain>(slice.units, x, slice.steps, tile, from_zero, ahead);
    for (int v = kVectors * kLanes; v < kRowBlock; v += kVectors * kLanes) {
      multiply<Of, kRows, kVectors, kLines, false>(slice.units + v, x, slice.steps, tile + v, from_zero, ahead);
    }
  }

  // kRows rows × kVectors vectors of a block go on by `steps`; partial sums wait in the tile.
  template <class Of, int kRows, int kVectors, int kLines, bool kAgain>
  void multiply(const std::uint32_t* unit, const Row* x, int steps, float* tile, bool from_zero, Ahead& ahead) const {
    const auto columns = static_cast<std::size_t>(call_.columns);
    V sums[kRows][kVectors];
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = from_zero ? Of::zero() : Of::load_sum(tile + m * columns + v * kLanes);
      }
    }
    // What is asked into the first cache holds one of its few slots for misses meanwhile. Only where next to nothing is
    // computed that is no harm, and better: AVX2, float32, two rows, Zen 4: 27 GB/s against 22.
    constexpr bool kIntoFirst = kLines == 2 && kVectors < kBlockVectors && Format::kSteps == 1;
    auto [next, stride] = ahead;
    const std::size_t again = call_.blocking.again_bytes;
    for (int k = 0; k < steps; k += Of::kSteps, unit += kRowBlock, next += stride) {
      for (int line = 0; line < kLines; ++line) {
        _mm_prefetch(next + line * kLine, kIntoFirst ? _MM_HINT_T0 : _MM_HINT_T1);
      }
      for (int line = 0; kAgain && line < kUnitLines; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(unit) + again + line * kLine, _MM_HINT_T1);
      }
      add_products<Of, 0>(unit, x + k, sums);
      if constexpr (Of::kSteps == 2) add_products<Of, 1>(unit, x + k + 1, sums);
    }
    ahead.next = next;
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) Of::store(tile + m * columns + v * kLanes, sums[m][v]);
    }
  }

  template <class Of, int kStep, int kRows, int kVectors>
  __attribute__((always_inline)) void add_products(const std::uint32_t* unit, const Row* x,
                                                   V (&sums)[kRows][kVectors]) const {
    typename Of::W weight[kVectors];
    for (int v = 0; v < kVectors; ++v) weight[v] = Of::template load<kStep>(unit + v * kLanes);
    for (int m = 0; m < kRows; ++m) {
      const auto element = Of::splat(x[m * row_steps_]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Of::multiply_add(element, weight[v], sums[m][v]);
    }
  }

  const PanelCall& call_;
  int units_;
  std::size_t row_steps_;  // of a row of x
  int passes_;
};

}  // namespace
}  // namespace computron::kernels
