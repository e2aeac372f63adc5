// Compiled with AVX-512 and VNNI; nothing here runs unless usable_isa() says so.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/cpu/expand512.h"
#include "kernels/cpu/gemm_integers.h"

namespace computron::kernels {
namespace {

using V = __m512;
using I = __m512i;

constexpr std::size_t kLine = 64;
constexpr int kLanes = 16;

// ---- rows of x

// Of chunks of so many vectors.
template <int kVectors>
class ChunkMaker {
 public:
  explicit ChunkMaker(bool halves) : halves_(halves) {}

  // Of x[0, count); integers behind them are zero.
  void run(const float* x, int count, std::int16_t* integers, float* step) const {
    I bits[kVectors], largest = _mm512_setzero_si512();
    for (int v = 0; v < kVectors; ++v) {
      const int there = std::clamp(count - kLanes * v, 0, kLanes);
      bits[v] = _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << there) - 1), x + kLanes * v);
      largest = _mm512_max_epu32(largest, _mm512_and_si512(bits[v], _mm512_set1_epi32(0x7fffffff)));
    }
    const std::uint32_t exponent = _mm512_reduce_max_epu32(largest) >> 23;
    // Neither a step nor half of one is subnormal.
    const std::uint32_t of_step = std::max(exponent, kDigits + 2) - kDigits;
    const V inverse = _mm512_set1_ps(std::bit_cast<float>((254 - of_step) << 23));
    for (int v = 0; v < kVectors; ++v) {
      const I rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(bits[v]), inverse));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(integers + kLanes * v), _mm512_cvtsepi32_epi16(rounded));
    }
    const bool finite = exponent < 255;
    *step = finite ? std::bit_cast<float>((of_step - halves_) << 23) : std::numeric_limits<float>::quiet_NaN();
  }

 private:
  static constexpr std::uint32_t kDigits = 14;

  std::uint32_t halves_;
};

// ---- codes

// Words of a pair of k of 16 columns, the v-th of four such; a column's two side by side.
struct Bytes {
  static constexpr int kPairBytes = 2 * kRowBlock;
  I words(const std::byte* pair, int v) const {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair + 32 * v)));
  }
};

// A permutation of words reads the lowest five bits of each, the fifth of which is a neighbour's: tables repeat.
class Nibbles {
 public:
  static constexpr int kPairBytes = kRowBlock;
  explicit Nibbles(DType codes) {
    alignas(64) std::int16_t table[32];
    constexpr std::int16_t kHalves[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // of e2m1
    for (int i = 0; i < 32; ++i) {
      table[i] = codes == DType::kFp4 ? kHalves[i % 16] : static_cast<std::int16_t>((i % 16 ^ 8) - 8);
    }
    table_ = _mm512_load_si512(table);
  }
  I words(const std::byte* pair, int v) const {
    return _mm512_permutexvar_epi16(_mm512_srlv_epi32(_mm512_loadu_si512(pair), _mm512_set1_epi32(4 * v)), table_);
  }

 private:
  I table_;
};

// ---- products

// kRows: x.together.
template <class Codes, int kChunk, int kRows>
class IntegersGemm {
  static constexpr int kPairs = kChunk / 2;
  static constexpr int kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;  // of sums of a row, to which results are late
  static constexpr int kMostGroups = 32 / kRows;                       // of rows that use codes in registers in turns

 public:
  IntegersGemm(const PanelCall& call, const IntegerRows& x, const Codes& codes)
      : call_(call), e_(*call.expansion), x_(x), codes_(codes) {}

  void run() const {
    const std::byte* block = call_.weight;
    for (int n = 0; n < call_.columns; n += kRowBlock, block += e_.layout.block_bytes()) {
      for (int g = 0; g < x_.groups; g += kMostGroups) multiply(block, g, std::min(kMostGroups, x_.groups - g), n);
    }
  }

 private:
  using Sums = float[kMostGroups * kRows][kRowBlock];

  void multiply(const std::byte* block, int first_group, int groups, int column) const {
    alignas(64) Sums sums;
    std::memset(sums, 0, groups * kRows * sizeof sums[0]);
    V scales[4] = {};
    std::size_t row = static_cast<std::size_t>(first_group) * kRows;
    for (int k = 0; k < e_.layout.depth; k += kChunk, row += x_.padded_rows()) {
      if (k % e_.layout.group == 0) load_scales(block, k / e_.layout.group, scales);
      add_chunk(block + e_.layout.codes_at(k), x_.integers + row * kChunk, x_.steps + row, groups, scales, sums);
    }
    const int first = first_group * kRows, rows = std::min(groups * kRows, x_.rows - first);
    for (int m = 0; m < rows; ++m) {
      std::memcpy(call_.tile + static_cast<std::size_t>(first + m) * call_.columns + column, sums[m], sizeof sums[m]);
    }
  }

  void load_scales(const std::byte* block, int group, V (&scales)[4]) const {
    const std::byte* p = block + e_.layout.scales_at(group);
    for (std::size_t b = 0; b < kRowBlock * e_.layout.scale_bytes; b += kLine) ask(p + b);
    for (int v = 0; v < 4; ++v) {
      scales[v] =
          e_.type.has_factors() ? Expand512::load_scales(p, block, v) : Expand512::load_scales(p, e_.type.scales, v);
    }
  }

  __attribute__((always_inline)) void add_chunk(const std::byte* codes, const std::int16_t* x, const float* steps,
                                                int groups, const V (&scales)[4], Sums& sums) const {
    constexpr int kQuarter = kPairs * Codes::kPairBytes / 4;
    for (int v = 0; v < 4; ++v) {
      asm volatile("" : "+r"(codes));  // else GCC 12 loads all lines ahead of the loop, and spills them
      for (int b = 0; b < kQuarter; b += kLine) ask(codes + v * kQuarter + b);
      I words[kPairs];
#pragma GCC unroll 16
      for (int j = 0; j < kPairs; ++j) words[j] = codes_.words(codes + j * Codes::kPairBytes, v);
      for (int g = 0; g < groups; ++g) {
        add_rows(words, x + g * kRows * kChunk, steps + g * kRows, scales[v], &sums[g * kRows][kLanes * v]);
      }
    }
  }

  __attribute__((always_inline)) void add_rows(const I (&words)[kPairs], const std::int16_t* x, const float* steps,
                                               V scales, float* sums) const {
    I products[kRows][kChains] = {};
#pragma GCC unroll 16
    for (int j = 0; j < kPairs; ++j) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) add_products(words[j], x + m * kChunk + 2 * j, products[m][j % kChains]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      for (int c = 1; c < kChains; ++c) products[m][0] = _mm512_add_epi32(products[m][0], products[m][c]);
      const V values = _mm512_mul_ps(_mm512_cvtepi32_ps(products[m][0]), _mm512_set1_ps(steps[m]));
      float* of_row = sums + m * kRowBlock;
      _mm512_store_ps(of_row, _mm512_fmadd_ps(values, scales, _mm512_load_ps(of_row)));
    }
  }

  // As _mm512_dpwssd_epi32 with both integers at `pair` for all columns. GCC 12 makes two instructions of that, and
  // then it takes 1.4 times as long (Xeon of family 6, model 207).
  static __attribute__((always_inline)) void add_products(I words, const std::int16_t* pair, I& sums) {
    struct Pair {
      std::int16_t integers[2];
    };
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(words), "m"(*reinterpret_cast<const Pair*>(pair)));
  }

  __attribute__((always_inline)) void ask(const std::byte* p) const {
    Expand512::ask(p, call_.blocking.codes_ahead_bytes);
  }

  const PanelCall& call_;
  const Expansion& e_;
  const IntegerRows& x_;
  Codes codes_;
};

template <class Codes, int kRows = 1>
void multiply(const PanelCall& call, const IntegerRows& x, const Codes& codes) {
  if constexpr (kRows < IntegerRows::kMostTogether) {
    if (x.together > kRows) return multiply<Codes, kRows + 1>(call, x, codes);
  }
  if (x.chunk == 32) return IntegersGemm<Codes, 32, kRows>(call, x, codes).run();
  IntegersGemm<Codes, 16, kRows>(call, x, codes).run();
}

}  // namespace

void make_integers_avx512(const IntegerRows& to, const float* x, int depth, bool halves) {
  const auto make = [&](const auto& maker) {
    for (int m = 0; m < to.rows; ++m) {
      const float* row = x + static_cast<std::size_t>(m) * depth;
      for (int c = 0, first = 0; c < to.chunks; ++c, first += to.chunk) {
        const std::size_t at = c * to.padded_rows() + m;
        const int count = std::max(depth - first, 0);  // a chunk may be padding alone
        maker.run(row + (count > 0 ? first : 0), count, to.integers + at * to.chunk, to.steps + at);
      }
    }
  };
  to.chunk == 32 ? make(ChunkMaker<2>(halves)) : make(ChunkMaker<1>(halves));
}

void gemm_integers_avx512(const PanelCall& call, const IntegerRows& x) {
  const DType codes = call.expansion->type.codes;
  codes == DType::kInt8 ? multiply(call, x, Bytes()) : multiply(call, x, Nibbles(codes));
}

}  // namespace computron::kernels
