// Compiled with AVX-512 and VNNI; nothing here runs unless usable_isa() says so.
#include <algorithm>
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

// Makes integers of chunks of so many vectors, sixteen chunks of a row at a time.
template <int kVectors>
class ChunkMaker {
 public:
  ChunkMaker(const IntegerRows& to, const float* x, int depth, bool halves)
      : to_(to), x_(x), depth_(depth), halves_(halves) {}

  void run() const {
    for (int first = 0; first < to_.rows; first += to_.block_rows) {
      const int rows = std::min(to_.block_rows, to_.rows - first);
      for (int m = 0; m < rows; ++m) make_row(first, m);
    }
  }

 private:
  static constexpr int kDigits = 14;
  static constexpr int kChunk = kVectors * kLanes;
  static constexpr int kWhole = kLanes * kChunk;  // elements of sixteen chunks

  void make_row(int first, int m) const {
    const float* x = x_ + static_cast<std::size_t>(first + m) * depth_;
    const std::size_t stride = static_cast<std::size_t>(to_.rows_of_block(first));
    std::size_t at = to_.at(first, 0, m);
    for (int c = 0, left = depth_; c < to_.chunks; c += kLanes, at += kLanes * stride) {
      const int count = std::min(kLanes, to_.chunks - c);
      if (left >= kWhole) {
        make<true>(x, left, kLanes, at, stride);
      } else {
        make<false>(x, left, count, at, stride);
      }
      x += kWhole;
      left -= kWhole;
    }
  }

  // `count` chunks of x[0, left), kLanes with all elements there or fewer; the results of one are `stride` behind those
  // of the one before.
  template <bool kAll>
  void make(const float* x, int left, int count, std::size_t at, std::size_t stride) const {
    if (kAll) count = kLanes;
    I largest[kLanes];
    for (int c = 0; c < count; ++c) {
      I sizes[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        const V elements = load<kAll>(x, left, c * kChunk + v * kLanes);
        sizes[v] = _mm512_and_si512(_mm512_castps_si512(elements), _mm512_set1_epi32(0x7fffffff));
      }
      largest[c] = kVectors == 1 ? sizes[0] : _mm512_max_epu32(sizes[0], sizes[kVectors - 1]);
    }
    for (int c = count; c < kLanes; ++c) largest[c] = _mm512_setzero_si512();
    alignas(kLine) float inverses[kLanes], steps[kLanes];
    find_steps(largest, inverses, steps);
    std::int16_t* integers = to_.integers + at * kChunk;
    float* step = to_.steps + at;
    for (int c = 0; c < count; ++c, integers += stride * kChunk, step += stride) {
      I rounded[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        const V elements = load<kAll>(x, left, c * kChunk + v * kLanes);
        rounded[v] = _mm512_cvtps_epi32(_mm512_mul_ps(elements, _mm512_set1_ps(inverses[c])));
      }
      store(rounded, integers);
      *step = steps[c];
    }
  }

  // Elements k to k + 15 of x[0, left); those behind the end are zero.
  template <bool kAll>
  static V load(const float* x, int left, int k) {
    if (kAll || k + kLanes <= left) return _mm512_loadu_ps(x + k);
    return k >= left ? _mm512_setzero_ps()
                     : _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << (left - k)) - 1), x + k);
  }

  // Lane c of the results is of chunk c, whose elements' magnitudes are at most those in `largest`.
  void find_steps(const I (&largest)[kLanes], float* inverses, float* steps) const {
    const I exponents = _mm512_srli_epi32(max_of_each(largest), 23);
    // Neither a step nor half of one is subnormal.
    const I of_steps =
        _mm512_sub_epi32(_mm512_max_epi32(exponents, _mm512_set1_epi32(kDigits + 2)), _mm512_set1_epi32(kDigits));
    _mm512_store_si512(inverses, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), of_steps), 23));
    const I sizes = _mm512_slli_epi32(_mm512_sub_epi32(of_steps, _mm512_set1_epi32(halves_)), 23);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(255));
    const V nan = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
    _mm512_store_ps(steps, _mm512_mask_mov_ps(nan, finite, _mm512_castsi512_ps(sizes)));
  }

  // Lane c: the largest of vector c.
  static I max_of_each(const I (&vectors)[kLanes]) {
    I pairs[8], fours[4];
    for (int i = 0; i < 8; ++i) {
      const I a = vectors[2 * i], b = vectors[2 * i + 1];
      pairs[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    for (int i = 0; i < 4; ++i) {
      const I a = pairs[2 * i], b = pairs[2 * i + 1];
      fours[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const auto halve = [](I a, I b) {
      constexpr int kEven = 0x88, kOdd = 0xdd;  // of the quarters of each
      return _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, kEven), _mm512_shuffle_i32x4(a, b, kOdd));
    };
    return halve(halve(fours[0], fours[1]), halve(fours[2], fours[3]));
  }

  static void store(const I (&integers)[kVectors], std::int16_t* to) {
    if constexpr (kVectors == 2) {
      const I order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);  // packing is by quarters of both
      _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, _mm512_packs_epi32(integers[0], integers[1])));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(integers[0]));
    }
  }

  const IntegerRows& to_;
  const float* x_;
  const int depth_;
  const int halves_;
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

// kRows: x.together. Few rows (kTiles is false) meet the codes of 16 columns in registers; many meet those of all 64,
// which become words in the first cache: there a word and an element of x are loaded once for several products.
template <class Codes, int kChunk, int kRows, bool kTiles>
class IntegersGemm {
  static constexpr int kPairs = kChunk / 2, kVectors = 4;
  static constexpr int kChains = kRows == 1 ? 4 : kRows <= 3 ? 2 : 1;  // of sums of a row, to which results are late
  static constexpr int kMostRows = kTiles ? IntegerRows::kBlockRows : IntegerRows::kFewRows;

 public:
  IntegersGemm(const PanelCall& call, const IntegerRows& x, const Codes& codes)
      : call_(call), e_(*call.expansion), x_(x), codes_(codes) {}

  void run() const {
    const std::byte* block = call_.weight;
    for (int n = 0; n < call_.columns; n += kRowBlock, block += e_.layout.block_bytes()) {
      for (int row = 0; row < x_.padded_rows(); row += x_.block_rows) multiply(block, row, n);
    }
  }

 private:
  using Sums = float[kMostRows][kRowBlock];  // of a block of rows

  // Of the block of rows from first_row on.
  void multiply(const std::byte* block, int first_row, int column) const {
    alignas(kLine) Sums sums;
    const int padded = x_.rows_of_block(first_row), groups = padded / kRows;
    std::memset(sums, 0, padded * sizeof sums[0]);
    V scales[kVectors] = {};
    for (int c = 0, k = 0; c < x_.chunks; ++c, k += kChunk) {
      if (k % e_.layout.group == 0) load_scales(block, k / e_.layout.group, scales);
      const std::byte* codes = block + e_.layout.codes_at(k);
      const std::size_t at = x_.at(first_row, c, 0);
      const std::int16_t* integers = x_.integers + at * kChunk;
      if constexpr (kTiles) {
        add_to_many(codes, integers, x_.steps + at, groups, scales, sums);
      } else {
        add_to_few(codes, integers, x_.steps + at, groups, scales, sums);
      }
    }
    const int rows = std::min(padded, x_.rows - first_row);
    for (int m = 0; m < rows; ++m) {
      std::memcpy(call_.tile + static_cast<std::size_t>(first_row + m) * call_.columns + column, sums[m],
                  sizeof sums[m]);
    }
  }

  void load_scales(const std::byte* block, int group, V (&scales)[kVectors]) const {
    const std::byte* p = block + e_.layout.scales_at(group);
    for (std::size_t b = 0; b < kRowBlock * e_.layout.scale_bytes; b += kLine) ask(p + b);
    for (int v = 0; v < kVectors; ++v) {
      scales[v] =
          e_.type.has_factors() ? Expand512::load_scales(p, block, v) : Expand512::load_scales(p, e_.type.scales, v);
    }
  }

  // ---- few rows

  __attribute__((always_inline)) void add_to_few(const std::byte* codes, const std::int16_t* x, const float* steps,
                                                 int groups, const V (&scales)[kVectors], Sums& sums) const {
    constexpr int kQuarter = kPairs * Codes::kPairBytes / kVectors;
    for (int v = 0; v < kVectors; ++v) {
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
      add_to(sums + m * kRowBlock, products[m][0], _mm512_set1_ps(steps[m]), scales);
    }
  }

  // ---- many rows

  __attribute__((always_inline)) void add_to_many(const std::byte* codes, const std::int16_t* x, const float* steps,
                                                  int groups, const V (&scales)[kVectors], Sums& sums) const {
    I words[kPairs][kVectors];
    for (int j = 0; j < kPairs; ++j, codes += Codes::kPairBytes) {
      for (int b = 0; b < Codes::kPairBytes; b += kLine) ask(codes + b);
      for (int v = 0; v < kVectors; ++v) _mm512_store_si512(&words[j][v], codes_.words(codes, v));
    }
    for (int g = 0; g < groups; ++g) {
      add_tile(words, x + g * kRows * kChunk, steps + g * kRows, scales, &sums[g * kRows]);
    }
  }

  // Not inlined: else GCC 12 keeps products in memory.
  __attribute__((noinline)) void add_tile(const I (&words)[kPairs][kVectors], const std::int16_t* x, const float* steps,
                                          const V (&scales)[kVectors], float (*sums)[kRowBlock]) const {
    I products[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) products[m][v] = _mm512_setzero_si512();
    }
    for (int j = 0; j < kPairs; ++j) {
      I of_columns[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) of_columns[v] = _mm512_load_si512(&words[j][v]);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        std::int32_t pair;
        std::memcpy(&pair, x + m * kChunk + 2 * j, sizeof pair);
        const I of_row = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) add_products(of_columns[v], of_row, products[m][v]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const V step = _mm512_set1_ps(steps[m]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) add_to(sums[m] + kLanes * v, products[m][v], step, scales[v]);
    }
  }

  static __attribute__((always_inline)) void add_to(float* sums, I products, V step, V scales) {
    const V values = _mm512_mul_ps(_mm512_cvtepi32_ps(products), step);
    _mm512_store_ps(sums, _mm512_fmadd_ps(values, scales, _mm512_load_ps(sums)));
  }

  // Does what _mm512_dpwssd_epi32 does; GCC 12 splits that one, too, and copies sums about.
  static __attribute__((always_inline)) void add_products(I words, I integers, I& sums) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(words), "v"(integers));
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

template <class Codes, int kRows, bool kTiles>
void multiply_with(const PanelCall& call, const IntegerRows& x, const Codes& codes) {
  if (x.chunk == 32) return IntegersGemm<Codes, 32, kRows, kTiles>(call, x, codes).run();
  IntegersGemm<Codes, 16, kRows, kTiles>(call, x, codes).run();
}

template <class Codes, int kRows = 1>
void multiply_few(const PanelCall& call, const IntegerRows& x, const Codes& codes) {
  if constexpr (kRows < IntegerRows::kMostTogether) {
    if (x.together > kRows) return multiply_few<Codes, kRows + 1>(call, x, codes);
  }
  multiply_with<Codes, kRows, false>(call, x, codes);
}

template <class Codes>
void multiply(const PanelCall& call, const IntegerRows& x, const Codes& codes) {
  x.in_tiles() ? multiply_with<Codes, IntegerRows::kTileRows, true>(call, x, codes) : multiply_few(call, x, codes);
}

}  // namespace

void make_integers_avx512(const IntegerRows& to, const float* x, int depth, bool halves) {
  to.chunk == 32 ? ChunkMaker<2>(to, x, depth, halves).run() : ChunkMaker<1>(to, x, depth, halves).run();
}

void gemm_integers_avx512(const PanelCall& call, const IntegerRows& x) {
  const DType codes = call.expansion->type.codes;
  codes == DType::kInt8 ? multiply(call, x, Bytes()) : multiply(call, x, Nibbles(codes));
}

}  // namespace computron::kernels
