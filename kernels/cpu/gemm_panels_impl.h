// The GEMM of gemm_panels.h, written once for the lanes and the element type of the file that includes it. Everything
// is local to that file: what is compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstdint>
#include <cstring>

#include "computron/base/vectors.h"
#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {
namespace {

// Format: V, kCount lanes; Unit, what a column has for one step: an element, or a pair that follow each other in k;
// kDepth, k of a step; kParts that are multiplied one after the other; Row, the part of x that meets one of them, of
// four bytes; load<part>(Unit*) of a weight; splat(Row); multiply_add(x, w, sum), and multiply_add_at(Row*, w, sum) if
// one instruction takes x from memory to all lanes; zero, load_sum, add, store of sums; kSums: vectors of them that
// registers hold beside weights and a row; kMaxGroup: rows that meet a weight together.
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
  static constexpr bool kTakesRowsFromMemory = requires(const Row* x, typename Format::W w, V sum) {
    Format::multiply_add_at(x, w, sum);
  };
  static_assert(sizeof(Row) == sizeof(float));

 public:
  explicit PanelGemm(const PanelCall& call)
      : call_(call),
        steps_(call.depth / Format::kDepth),
        row_stride_(static_cast<std::size_t>(steps_) * Format::kParts),
        passes_(count_passes()),
        x_(packed_rows()) {}

  void run() const {
    if (call_.expansion == nullptr && passes_ > 1) return run_slices();
    const std::byte* block = call_.weight;
    const std::size_t block_bytes = call_.block_bytes(steps_ * kUnitBytes);
    int n = 0;
    for (int at_once = blocks_at_once(); at_once > 1; at_once /= 2) {  // what is left, by half as many
      const int columns = at_once * kRowBlock;
      for (; n + columns <= call_.columns; n += columns, block += at_once * block_bytes) {
        run_at_once(at_once, block, call_.tile + n);
      }
    }
    for (; n < call_.columns; n += kRowBlock, block += block_bytes) {
      call_.expansion == nullptr ? run_once(block, call_.tile + n) : run_expanded(block, call_.tile + n);
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

  // Where sums of a group of rows lie, from one of the block's columns on, and which of the slices is added to them.
  struct Place {
    int row, column;  // the first ones
    float* tile;      // where partial sums wait
    bool first, last;
  };

  // As many vectors of a block as registers for their sums allow, a power of two.
  static constexpr int vectors_beside(int rows) {
    int vectors = kBlockVectors;
    while (vectors * rows > Format::kSums) vectors /= 2;
    return vectors;
  }

  // How many blocks so many rows meet at once where registers hold their sums: a power of two, 1 of more rows.
  static constexpr int most_at_once(int rows) {
    int blocks = PanelBlocking::kMostAtOnce;
    while (blocks > 1 && blocks * kBlockVectors * rows > Format::kSums) blocks /= 2;
    return blocks;
  }
  int blocks_at_once() const {
    const int most = most_at_once(call_.rows);
    if (call_.expansion != nullptr) return 1;
    return call_.blocking.blocks_at_once < most ? call_.blocking.blocks_at_once : most;
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

  // A group of so many rows is multiplied half from memory, and packed: its rows lie element by element side by side.
  // What a step meets is one piece then, where rows of x may be so far apart that they share few lines of the first
  // cache.
  static constexpr bool is_packed(int rows) { return kTakesRowsFromMemory && rows > kMostUnpackedRows; }
  static_assert(!kTakesRowsFromMemory || Format::kSums / kBlockVectors == kMostUnpackedRows);

  // x; where the first of its groups, which is the largest, is to be packed, a copy in which all that are to be are.
  const Row* packed_rows() const {
    const auto* x = reinterpret_cast<const Row*>(call_.x);
    if (!is_packed(rows_of_group(0))) return x;
    auto* packed = reinterpret_cast<Row*>(call_.packed_rows->memory);
    if (call_.packed_rows->made) return packed;
    call_.packed_rows->made = true;
    for (int m = 0, group; m < call_.rows; m += group) {
      group = rows_of_group(m);
      pack_group(x + m * row_stride_, group, packed + m * row_stride_);
    }
    return packed;
  }

  void pack_group(const Row* rows, int group, Row* to) const {
    if (!is_packed(group)) {
      std::memcpy(to, rows, group * row_stride_ * sizeof(Row));
      return;
    }
    int row = 0;
    for (; row + 4 <= group; row += 4) pack_four(rows + row * row_stride_, to + row, group);
    for (; row < group; ++row) {
      for (std::size_t k = 0; k < row_stride_; ++k) to[k * group + row] = rows[row * row_stride_ + k];
    }
  }
  // Four rows, which hold a multiple of four elements, of a group. Moves bits and computes nothing.
  void pack_four(const Row* rows, Row* to, int group) const {
    const auto* from = reinterpret_cast<const float*>(rows);
    auto* out = reinterpret_cast<float*>(to);
    for (std::size_t k = 0; k < row_stride_; k += 4, out += 4 * group) {
      __m128 a = _mm_loadu_ps(from + k), b = _mm_loadu_ps(from + row_stride_ + k);
      __m128 c = _mm_loadu_ps(from + 2 * row_stride_ + k), d = _mm_loadu_ps(from + 3 * row_stride_ + k);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      _mm_storeu_ps(out, a);
      _mm_storeu_ps(out + group, b);
      _mm_storeu_ps(out + 2 * group, c);
      _mm_storeu_ps(out + 3 * group, d);
    }
  }

  // From what a group meets in one step to what it meets in the next, and of one of its rows.
  template <int kRows>
  static constexpr int kStepRows = (is_packed(kRows) ? kRows : 1) * Format::kParts;
  template <int kRows>
  const Row* element_of(const Row* x, int m) const {
    return x + (is_packed(kRows) ? static_cast<std::size_t>(m) : m * row_stride_);
  }

  void run_once(const std::byte* block, float* tile) const {
    Ahead ahead{reinterpret_cast<const char*>(block) + call_.blocking.ahead_bytes, kUnitBytes};
    run_groups<kUnitLines, /*kAgain=*/false>(slice_at(block, 0, steps_, tile), ahead);
  }

  // All rows meet `blocks` blocks.
  template <int kRows = 1, int kBlocks = 2>
  void run_at_once(int blocks, const std::byte* block, float* tile) const {
    if constexpr (most_at_once(kRows + 1) > 1) {
      if (call_.rows > kRows) return run_at_once<kRows + 1, kBlocks>(blocks, block, tile);
    }
    if constexpr (most_at_once(kRows) > kBlocks) {
      if (blocks > kBlocks) return run_at_once<kRows, 2 * kBlocks>(blocks, block, tile);
    }
    if constexpr (most_at_once(kRows) >= kBlocks) multiply_at_once<kRows, kBlocks>(block, tile);
  }

  template <int kRows, int kBlocks>
  void multiply_at_once(const std::byte* block, float* tile) const {
    V sums[kBlocks][kRows][kBlockVectors];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
        for (int v = 0; v < kBlockVectors; ++v) sums[b][m][v] = Format::zero();
      }
    }
    const auto place_of = [&](int b) {
      float* to = tile + b * kRowBlock;
      return Place{.row = 0, .column = static_cast<int>(to - call_.tile), .tile = to, .first = true, .last = true};
    };
    for (int b = 0; b < kBlocks && call_.result != nullptr; ++b) ask_for_result<kRows, kBlockVectors>(place_of(b));
    const std::size_t block_units = static_cast<std::size_t>(steps_) * kRowBlock;
    const auto* unit = reinterpret_cast<const Unit*>(block);
    const Row* x = x_;
    for (int k = 0; k < steps_; ++k, unit += kRowBlock, x += kStepRows<kRows>) {
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) {
        const Unit* of_block = unit + b * block_units;
        const char* next = reinterpret_cast<const char*>(of_block) + call_.blocking.ahead_bytes;
        for (int line = 0; line < kUnitLines; ++line) _mm_prefetch(next + line * kLine, _MM_HINT_T1);
        add_step(of_block, x, sums[b]);
      }
    }
    const bool to_result = call_.result != nullptr && call_.result->of_sums;
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const Place place = place_of(b);
      to_result ? put_result(sums[b], place) : put(sums[b], place.tile, static_cast<std::size_t>(call_.columns));
    }
  }

  // Many rows go through longer slices, so that their sums seldom wait in the tile. What goes through scratch memory is
  // cut smaller: few rows read it from the first cache.
  int most_steps() const {
    const bool many = call_.rows >= PanelBlocking::kManyRows;
    if (call_.expansion != nullptr) return many ? PanelBlocking::kMostSlice : PanelBlocking::kShortSlice;
    const int usual = call_.blocking.slice_bytes / static_cast<int>(kUnitBytes);
    return many && usual <= PanelBlocking::kMostSlice ? ceil_div(steps_, ceil_div(steps_, PanelBlocking::kMostSlice))
                                                      : usual;
  }

  // All blocks meet a slice of x while the first cache holds it, or of many rows the second. While the passes over a
  // slice of a block use it each asks for its part of the next, so that memory is read all the time. A processor may
  // drop some of these: the first pass can ask again.
  void run_slices() const {
    const int most = most_steps();
    const std::size_t block_bytes = steps_ * kUnitBytes;
    for (int k = 0, count; k < steps_; k += count) {
      count = steps_ - k < most ? steps_ - k : most;
      const std::byte* units = call_.weight + k * kUnitBytes;
      for (int n = 0; n < call_.columns; n += kRowBlock, units += block_bytes) {
        const bool last_block = n + kRowBlock == call_.columns, last_slice = k + count == steps_;
        // Behind the last slice of all lies another task's weight, which the same thread often takes next.
        const std::byte* next = !last_block  ? units + block_bytes
                                : last_slice ? units + count * kUnitBytes
                                             : call_.weight + (k + count) * kUnitBytes;
        run_slice(slice_at(units, k, count, call_.tile + n), reinterpret_cast<const char*>(next));
      }
    }
  }

  void run_slice(const Slice& slice, const char* next) const {
    Ahead ahead{next, ceil_div(kUnitBytes, static_cast<std::size_t>(passes_))};
    const bool again = call_.blocking.again_bytes != 0;
    if (ahead.stride > kLine) {
      again ? run_groups<2, true>(slice, ahead) : run_groups<2, false>(slice, ahead);
    } else {
      again ? run_groups<1, true>(slice, ahead) : run_groups<1, false>(slice, ahead);
    }
  }

  // The expansion asked memory ahead.
  void run_expanded(const std::byte* block, float* tile) const {
    const int most = most_steps();
    for (int k = 0, count; k < steps_; k += count) {
      count = steps_ - k < most ? steps_ - k : most;
      const std::byte* units = call_.expanded(block, k * Format::kDepth, count * Format::kDepth);
      Ahead nothing{reinterpret_cast<const char*>(units), 0};
      run_groups<0, /*kAgain=*/false>(slice_at(units, k, count, tile), nothing);
    }
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
    const Row* x = x_ + m * row_stride_ + slice.first * kStepRows<kRows>;
    float* tile = slice.tile + static_cast<std::size_t>(m) * call_.columns;
    Place place{.row = m,
                .column = static_cast<int>(slice.tile - call_.tile),
                .tile = tile,
                .first = slice.first == 0,
                .last = slice.first + slice.steps == steps_};
    multiply<kRows, kVectors, kLines, kAgain>(slice.units, x, slice.steps, place, ahead);
    for (int v = kVectors * kLanes; v < kRowBlock; v += kVectors * kLanes) {
      place.column += kVectors * kLanes;
      place.tile += kVectors * kLanes;
      multiply<kRows, kVectors, kLines, false>(slice.units + v, x, slice.steps, place, ahead);
    }
  }

  // GCC 12 takes a call of it for one without effect, and leaves it out, unless it is inlined first.
  template <int kRows, int kVectors>
  __attribute__((always_inline)) void ask_for_result(const Place& of) const {
    const PanelResult& result = *call_.result;
    const auto element = static_cast<int>(size_of(result.dtype));
    const auto* rows = reinterpret_cast<const char*>(result.to) + of.row * result.stride + of.column * element;
    for (int m = 0; m < kRows; ++m, rows += result.stride) {
      for (int byte = 0; byte < kVectors * kLanes * element; byte += kLine) __builtin_prefetch(rows + byte, /*rw=*/1);
    }
  }

  // kRows rows × kVectors vectors of a block go on by `steps`.
  template <int kRows, int kVectors, int kLines, bool kAgain>
  void multiply(const Unit* unit, const Row* x, int steps, const Place& of, Ahead& ahead) const {
    const auto columns = static_cast<std::size_t>(call_.columns);
    V sums[kRows][kVectors];
    // Without the pragmas GCC 12 has the sums pass through memory before and after the steps.
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = of.first ? Format::zero() : Format::load_sum(of.tile + m * columns + v * kLanes);
      }
    }
    const bool to_result = of.last && call_.result != nullptr;
    if (to_result) ask_for_result<kRows, kVectors>(of);
    // What is asked into the first cache holds one of its few slots for misses meanwhile.
    auto [next, stride] = ahead;
    // Asking again goes on from the end of the slice to what is used after it.
    [[maybe_unused]] const char *end, *again;
    if constexpr (kAgain) {
      end = reinterpret_cast<const char*>(unit) + steps * kUnitBytes;
      again = reinterpret_cast<const char*>(unit) + call_.blocking.again_bytes;
      if (again >= end) again = ahead.next + (again - end);
    }
    for (int k = 0; k < steps; ++k, unit += kRowBlock, x += kStepRows<kRows>, next += stride) {
      for (int line = 0; line < kLines; ++line) _mm_prefetch(next + line * kLine, _MM_HINT_T1);
      if constexpr (kAgain) {
        for (int line = 0; line < kUnitLines; ++line) _mm_prefetch(again + line * kLine, _MM_HINT_T1);
        again += kUnitBytes;
        if (again == end) again = ahead.next;
      }
      add_step(unit, x, sums);
    }
    ahead.next = next;
    if (to_result && call_.result->of_sums) return put_result(sums, of);
    put(sums, of.tile, columns);
  }

  template <int kRows, int kVectors>
  __attribute__((always_inline)) void put(const V (&sums)[kRows][kVectors], float* to, std::size_t stride) const {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) Format::store(to + m * stride + v * kLanes, sums[m][v]);
    }
  }

  template <int kRows, int kVectors>
  __attribute__((always_inline)) void put_result(V (&sums)[kRows][kVectors], const Place& of) const {
    const PanelResult& result = *call_.result;
    if (result.bias != nullptr) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const V bias = Format::load_sum(result.bias + of.column + v * kLanes);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) sums[m][v] = Format::add(sums[m][v], bias);
      }
    }
    put(sums, reinterpret_cast<float*>(result.to + of.row * result.stride) + of.column, result.stride / sizeof(float));
  }

  template <int kPart = 0, int kRows, int kVectors>
  __attribute__((always_inline)) void add_step(const Unit* unit, const Row* x, V (&sums)[kRows][kVectors]) const {
    add_products<kPart>(unit, x + kPart * kStepRows<kRows> / Format::kParts, sums);
    if constexpr (kPart + 1 < Format::kParts) add_step<kPart + 1>(unit, x, sums);
  }

  template <int kPart, int kRows, int kVectors>
  __attribute__((always_inline)) void add_products(const Unit* unit, const Row* x, V (&sums)[kRows][kVectors]) const {
    // What there is less of is kept in registers as a whole.
    if constexpr (kRows < kVectors) {
      typename Format::W elements[kRows];
      for (int m = 0; m < kRows; ++m) elements[m] = Format::splat(*element_of<kRows>(x, m));
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
    // An element that meets two vectors: half of them go into a register first, the others into both products from
    // memory. All the first way takes more instructions, and all the other way more loads, than the products leave time
    // for.
    constexpr int kInRegisters = is_packed(kRows) ? (kRows + 1) / 2 : kRows;
#pragma GCC unroll 16
    for (int m = 0; m < kInRegisters; ++m) {
      const auto element = Format::splat(*element_of<kRows>(x, m));
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Format::multiply_add(element, weight[v], sums[m][v]);
    }
    if constexpr (kInRegisters < kRows) {
#pragma GCC unroll 16
      for (int m = kInRegisters; m < kRows; ++m) {
        for (int v = 0; v < kVectors; ++v)
          sums[m][v] = Format::multiply_add_at(element_of<kRows>(x, m), weight[v], sums[m][v]);
      }
    }
  }

  const PanelCall& call_;
  int steps_;  // of a block
  std::size_t row_stride_;
  int passes_;
  const Row* x_;
};

}  // namespace
}  // namespace computron::kernels
