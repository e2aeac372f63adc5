// Compiled with AVX-512 BF16 and VBMI; nothing here runs unless usable_isa() and gemm.cpp say so.
#include <algorithm>
#include <bit>

#include "kernels/cpu/expand512.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/gemm_codes.h"

namespace computron::kernels {
namespace {

using V = __m512;
using I = __m512i;
using W = __m512bh;

// By code of a pair of k: eight vectors as expand512.h has codes.
using Scales = V[8];

W words(I x) { return reinterpret_cast<W>(x); }

// ---- Codes of a pair of k of a block. part<p>(): the values of the 16 rows from 16 p on, both k of a row together.
// kHalves: the parts that are made together. kSmallestScale: smaller ones, besides 0, are for add_expanded().
// in_lower_half(j): whether vector j of the scales has them as bfloat16 in the lower halves of its lanes.

struct Int8Codes {
  static constexpr bool kIsFp8 = false;
  static constexpr int kPairBytes = 128;
  static constexpr int kHalves[2][2] = {{0, 1}, {2, 3}};
  static constexpr float kSmallestScale = kSmallestSafe;
  static constexpr bool in_lower_half(int) { return false; }

  Expand512::Int8 codes;
  Int8Codes(const std::byte* p, I) : codes(p) {}
  template <int kPart>
  W part(const Scales& scales) const {
    const auto [a, b] = codes.template floats<kPart>();
    return _mm512_cvtne2ps_pbh(_mm512_mul_ps(b, scales[2 * kPart + 1]), _mm512_mul_ps(a, scales[2 * kPart]));
  }
};

// Of lanes of two bfloat16 values the lower or the upper one, by the scale of each lane. kByDots, for scales that are
// bfloat16 themselves and in the same half of their lanes as the value, the other half being 0: a dot product.
template <bool kByDots, bool kUpper>
V product(I both, V scale) {
  if constexpr (kByDots) {
    return _mm512_dpbf16_ps(_mm512_setzero_ps(), words(both), words(_mm512_castps_si512(scale)));
  }
  const I floats = kUpper ? _mm512_and_si512(both, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(both, 16);
  return _mm512_mul_ps(_mm512_castsi512_ps(floats), scale);
}

// The upper and the lower eight bits of the bfloat16 that each e4m3 is, its sign left out.
struct E4M3Table {
  alignas(64) std::uint8_t upper[128] = {}, lower[128] = {};
  constexpr E4M3Table() {
    for (unsigned code = 0; code < 128; ++code) {
      const unsigned exponent = code >> 3, mantissa = code & 7;
      unsigned bits = (exponent + 120) << 7 | mantissa << 4;
      if (exponent == 0) {
        const int power = std::bit_width(mantissa) - 1;
        bits = mantissa == 0 ? 0 : static_cast<unsigned>(power + 118) << 7 | (mantissa << (7 - power) & 0x7f);
      }
      upper[code] = static_cast<std::uint8_t>(bits >> 8);
      lower[code] = static_cast<std::uint8_t>(bits);
    }
  }
};
constexpr E4M3Table kE4M3;

// Values of neighbours are found as bytes and interleaved. The bytes of a line of codes are put in such an order before
// that lane i of the first 32 becomes code i below and code 16 + i above.
struct InterleavedOrder {
  alignas(64) std::uint8_t from[64] = {};
  constexpr InterleavedOrder() {
    for (int lane = 0; lane < 16; ++lane) {
      for (int j = 0; j < 4; ++j) from[lane / 4 * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2] = 16 * j + lane;
    }
  }
};
constexpr InterleavedOrder kInterleaved;

template <bool kByDots>
struct Fp8Codes {
  static constexpr bool kIsFp8 = true;
  static constexpr int kPairBytes = 128;
  static constexpr int kHalves[2][2] = {{0, 1}, {2, 3}};
  static constexpr float kSmallestScale = kByDots ? 0x1p-23f : kSmallestSafe;
  static constexpr bool in_lower_half(int j) { return kByDots && j % 2 == 0; }

  const std::byte* codes;
  Fp8Codes(const std::byte* p, I) : codes(p) {}
  template <int kPart>
  W part(const Scales& scales) const {
    const I line =
        _mm512_permutexvar_epi8(_mm512_load_si512(kInterleaved.from), _mm512_loadu_si512(codes + kPart / 2 * 64));
    const I lower = look_up(kE4M3.lower, line);
    const I upper = _mm512_or_si512(look_up(kE4M3.upper, line), _mm512_and_si512(line, _mm512_set1_epi8(-128)));
    const I both = kPart % 2 == 0 ? _mm512_unpacklo_epi8(lower, upper) : _mm512_unpackhi_epi8(lower, upper);
    return _mm512_cvtne2ps_pbh(product<kByDots, true>(both, scales[2 * kPart + 1]),
                               product<kByDots, false>(both, scales[2 * kPart]));
  }
  static I look_up(const std::uint8_t (&table)[128], I index) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  }
};

// A permutation of words finds the bfloat16 of code 16 j + i below and of code 64 + 16 j + i above in lane i.
template <bool kByDots>
struct NibbleCodes {
  static constexpr bool kIsFp8 = false;
  static constexpr int kPairBytes = 64;
  static constexpr int kHalves[2][2] = {{0, 2}, {1, 3}};
  static constexpr float kSmallestScale = kByDots ? 0x1p-31f : kSmallestSafe;
  static constexpr bool in_lower_half(int j) { return kByDots && j < 4; }

  I nibbles, values;
  NibbleCodes(const std::byte* p, I table) : nibbles(_mm512_loadu_si512(p)), values(table) {}
  template <int kPart>
  W part(const Scales& scales) const {
    constexpr int kFirst = kPart % 2 * 2;
    return _mm512_cvtne2ps_pbh(product<kByDots, kPart / 2>(both<kFirst + 1>(), scales[2 * kPart + 1]),
                               product<kByDots, kPart / 2>(both<kFirst>(), scales[2 * kPart]));
  }
  template <int kNibble>
  I both() const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 4 * kNibble), values);
  }
};

// bfloat16 of the 16 codes, twice.
I table_of(V values) {
  const __m256i halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
  return _mm512_broadcast_i64x4(halves);
}

// ---- Scales

// For each word of vector j of a pair's codes, which of 32 scales is its row's. Vectors hold eight rows each.
I scale_of_words(int j) {
  const I rows = _mm512_set_epi32(0x70007, 0x70007, 0x60006, 0x60006, 0x50005, 0x50005, 0x40004, 0x40004, 0x30003,
                                  0x30003, 0x20002, 0x20002, 0x10001, 0x10001, 0, 0);
  return _mm512_add_epi16(rows, _mm512_set1_epi16(static_cast<short>(8 * j)));
}

// Loads scales and finds out whether all that it loaded are 0 or at least Code::kSmallestScale and less than
// kLargestSafe.
template <class Code>
class ScaleLoader {
 public:
  explicit ScaleLoader(const Expansion& e) : e_(e) {}

  // Of the group whose scales are at `p`.
  __attribute__((always_inline)) void load(const std::byte* block, const std::byte* p, Scales& scales) {
    e_.type.scales == DType::kBF16 ? load_bf16(p, scales) : static_cast<void>(safe_ &= load_any(e_, block, p, scales));
  }
  bool all_safe() const {
    const I least = _mm512_set1_epi16(upper_half(Code::kSmallestScale) - 1);
    const I most = _mm512_set1_epi16(upper_half(kLargestSafe));
    return safe_ && (_mm512_cmplt_epu16_mask(smallest_, least) | _mm512_cmpge_epu16_mask(largest_, most)) == 0;
  }

 private:
  static short upper_half(float x) { return static_cast<short>(std::bit_cast<std::uint32_t>(x) >> 16); }

  __attribute__((always_inline)) void load_bf16(const std::byte* p, Scales& scales) {
    for (int half = 0; half < 2; ++half) {
      const I bits = _mm512_loadu_si512(p + 64 * half), size = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
      smallest_ = _mm512_min_epu16(smallest_, _mm512_add_epi16(size, _mm512_set1_epi16(-1)));
      largest_ = _mm512_max_epu16(largest_, size);
      for (int j = 0; j < 4; ++j) {
        const __mmask32 where = Code::in_lower_half(4 * half + j) ? 0x55555555 : 0xaaaaaaaa;
        scales[4 * half + j] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(where, scale_of_words(j), bits));
      }
    }
  }
  static bool load_any(const Expansion& e, const std::byte* block, const std::byte* p, Scales& scales) {
    V rows[4];
    bool safe = true;
    for (int v = 0; v < 4; ++v) {
      rows[v] =
          e.type.has_factors() ? Expand512::load_scales(p, block, v) : Expand512::load_scales(p, e.type.scales, v);
      safe &= Expand512::all_safe(rows[v], Code::kSmallestScale);
    }
    Bf16Spread::spread(rows, scales);
    for (int j = 0; j < 8; ++j) {
      if (!Code::in_lower_half(j)) continue;
      scales[j] = _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_castps_si512(scales[j]), 16));
    }
    return safe;
  }

  const Expansion& e_;
  bool safe_ = true;
  // Of bfloat16 scales, by place in a vector: the largest without its sign, and the smallest likewise, less 1, so that
  // 0 does not count.
  I largest_ = _mm512_setzero_si512(), smallest_ = _mm512_set1_epi16(-1);
};

// ---- Products

template <class Code>
class CodesGemm {
  static constexpr int kMostTogether = 4;  // rows of x that meet all parts of a block at once
  static constexpr int kMostInTurns = 12;  // that meet two at once

 public:
  CodesGemm(const PanelCall& call, I table)
      : call_(call), e_(*call.expansion), table_(table), row_words_(static_cast<std::size_t>(call.depth) / 2) {}

  void run() const {
    const std::byte* block = call_.weight;
    const int groups = ceil_div(call_.rows, kMostInTurns), most = ceil_div(call_.rows, groups);
    for (int n = 0; n < call_.columns; n += kRowBlock, block += e_.layout.block_bytes()) {
      for (int m = 0; m < call_.rows; m += most) {
        run_group(std::min(most, call_.rows - m), block, m,
                  call_.tile + static_cast<std::size_t>(m) * call_.columns + n);
      }
    }
  }

 private:
  // Rows of x from row m on; their part of the tile.
  template <int kRows = 1>
  void run_group(int rows, const std::byte* block, int m, float* tile) const {
    if constexpr (kRows < kMostInTurns) {
      if (rows > kRows) return run_group<kRows + 1>(rows, block, m, tile);
    }
    const auto* x = reinterpret_cast<const std::uint32_t*>(call_.x) + m * row_words_;
    if constexpr (kRows <= kMostTogether) {
      multiply<kRows, 0, 1, 2, 3>(block, x, tile);
    } else {
      multiply<kRows, Code::kHalves[0][0], Code::kHalves[0][1]>(block, x, tile);
      multiply<kRows, Code::kHalves[1][0], Code::kHalves[1][1]>(block, x, tile);
    }
  }

  // A block whose scales turn out not to be safe is done again.
  template <int kRows, int... kPart>
  void multiply(const std::byte* block, const std::uint32_t* x, float* tile) const {
    constexpr int kParts = sizeof...(kPart), kPlace[] = {kPart...};
    V sums[kRows][kParts] = {};
    ScaleLoader<Code> loader(e_);
    const std::byte* p = block + e_.layout.factors_bytes;
    for (int k = 0, next; k < call_.depth; k = next) {
      next = std::min(k + e_.layout.group, call_.depth);
      Scales scales;
      loader.load(block, p, scales);
      p = add_group<kRows, kPart...>(p + kRowBlock * e_.layout.scale_bytes, x + k / 2, x + next / 2, scales, sums);
    }
    if (!loader.all_safe()) {
      std::fill_n(&sums[0][0], kRows * kParts, V{});
      add_expanded<kRows, kPart...>(block, x, sums);
    }
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kParts; ++v) {
        _mm512_storeu_ps(tile + static_cast<std::size_t>(m) * call_.columns + 16 * kPlace[v], sums[m][v]);
      }
    }
  }

  // Pairs of the first row of x from `x` to `end`. Returns where their codes end.
  template <int kRows, int... kPart>
  __attribute__((always_inline)) const std::byte* add_group(const std::byte* codes, const std::uint32_t* x,
                                                            const std::uint32_t* end, const Scales& scales,
                                                            V (&sums)[kRows][sizeof...(kPart)]) const {
    // Into the first cache. One row of int8 on one core of Zen 4, 3 KiB ahead: 20.3 GB/s; into the second cache 0.5 or
    // 1 KiB ahead 20, 2 KiB 16, 3 KiB 10.
    const int ahead = call_.blocking.codes_ahead_bytes;
    for (; x < end; ++x, codes += Code::kPairBytes) {
      for (int b = 0; b < Code::kPairBytes; b += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + ahead + b), _MM_HINT_T0);
      }
      const Code code(codes, table_);
      add_products(x, {code.template part<kPart>(scales)...}, sums);
    }
    return codes;
  }

  template <int kRows, int... kPart>
  void add_expanded(const std::byte* block, const std::uint32_t* x, V (&sums)[kRows][sizeof...(kPart)]) const {
    constexpr int kSlice = 64;
    for (int k = 0, next; k < call_.depth; k = next) {
      next = std::min(k + kSlice, call_.depth);
      const std::byte* values = call_.expanded(block, k, next - k);
      for (; k < next; k += 2, values += 4 * kRowBlock) {
        add_products(x + k / 2, {words(_mm512_loadu_si512(values + 64 * kPart))...}, sums);
      }
    }
  }

  template <int kRows, int kParts>
  __attribute__((always_inline)) void add_products(const std::uint32_t* x, const W (&values)[kParts],
                                                   V (&sums)[kRows][kParts]) const {
    for (int m = 0; m < kRows; ++m) {
      const W pair = words(_mm512_set1_epi32(static_cast<int>(x[m * row_words_])));
      for (int v = 0; v < kParts; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], pair, values[v]);
    }
  }

  const PanelCall& call_;
  const Expansion& e_;
  I table_;
  std::size_t row_words_;
};

// ---- The same in AMX's order of sums

constexpr int kTileDepth = 32;  // k of a tile

// Subnormal numbers count as zero while it lives, as in AMX.
class FlushesSubnormals {
 public:
  FlushesSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushesSubnormals() { _mm_setcsr(before_); }
  FlushesSubnormals(const FlushesSubnormals&) = delete;
  FlushesSubnormals& operator=(const FlushesSubnormals&) = delete;

 private:
  unsigned before_;
};

// TDPBF16PS (Intel's Software Developer's Manual, "TDPBF16PS") sums the products of a tile's even k, each added to
// those before, and likewise those of its odd k; their sum is added to what was there. Products of two bfloat16 are
// exact in float32, so fused multiply-adds have its bits.
template <class Code>
class TiledCodesGemm {
 public:
  TiledCodesGemm(const PanelCall& call, I table) : call_(call), e_(*call.expansion), table_(table) {}

  void run() const {
    const std::byte* block = call_.weight;
    for (int n = 0; n < call_.columns; n += kRowBlock, block += e_.layout.block_bytes()) {
      bool safe = false;
      {
        const FlushesSubnormals flushes;
        safe = multiply(block, call_.tile + n);
      }
      if (!safe) gemm_amx_block(call_, block, call_.tile + n);
    }
  }

 private:
  static constexpr int kParts = 4;  // of 16 rows of a block

  // False: the scales are for gemm_amx().
  bool multiply(const std::byte* block, float* tile) const {
    V sums[kParts] = {};
    ScaleLoader<Code> loader(e_);
    const std::byte* p = block + e_.layout.factors_bytes;
    for (int k = 0, next; k < call_.depth; k = next) {
      next = std::min(k + e_.layout.group, call_.depth);
      Scales scales;
      loader.load(block, p, scales);
      p += kRowBlock * e_.layout.scale_bytes;
      for (; k < next; k += kTileDepth, p += kTileDepth / 2 * Code::kPairBytes) {
        add_tile(p, reinterpret_cast<const std::uint32_t*>(call_.x) + k / 2, scales, sums);
      }
    }
    if (!loader.all_safe()) return false;
    for (int v = 0; v < kParts; ++v) _mm512_storeu_ps(tile + 16 * v, sums[v]);
    return true;
  }

  __attribute__((always_inline)) void add_tile(const std::byte* codes, const std::uint32_t* x, const Scales& scales,
                                               V (&sums)[kParts]) const {
    const int ahead = call_.blocking.codes_ahead_bytes;
    V even[kParts] = {}, odd[kParts] = {};
    for (int pair = 0; pair < kTileDepth / 2; ++pair, codes += Code::kPairBytes) {
      for (int b = 0; b < Code::kPairBytes; b += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + ahead + b), _MM_HINT_T0);
      }
      const Code code(codes, table_);
      const W values[kParts] = {code.template part<0>(scales), code.template part<1>(scales),
                                code.template part<2>(scales), code.template part<3>(scales)};
      const I both = _mm512_set1_epi32(static_cast<int>(x[pair]));
      for (int v = 0; v < kParts; ++v) {
        even[v] = _mm512_fmadd_ps(lower(reinterpret_cast<I>(values[v])), lower(both), even[v]);
        odd[v] = _mm512_fmadd_ps(upper(reinterpret_cast<I>(values[v])), upper(both), odd[v]);
      }
    }
    for (int v = 0; v < kParts; ++v) sums[v] = _mm512_add_ps(sums[v], _mm512_add_ps(even[v], odd[v]));
  }
  static V lower(I pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static V upper(I pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536))); }

  const PanelCall& call_;
  const Expansion& e_;
  I table_;
};

// Whether no sum can be subnormal. Subnormal sums become zeros of their sign, and only to a sum of -0 a weight of -0 is
// not the same as one of 0, which multiplication by dot products makes of it. Elements of x are 0, or subnormal and
// count as 0, or at least 2^-80, and then multiples of 2^-87. Weights are multiples of 2^-39 where scales are at least
// kSmallestScale. So sums are multiples of 2^-126, the smallest number that is not subnormal.
bool far_from_subnormal(const PanelCall& call) {
  constexpr int kLeastNormal = 0x0080, kLeast = (127 - 80) << 7;
  I least = _mm512_set1_epi16(-1);
  const std::size_t bytes = static_cast<std::size_t>(call.rows) * call.depth * 2;  // a multiple of 64
  for (std::size_t i = 0; i < bytes; i += 64) {
    const I size = _mm512_and_si512(_mm512_loadu_si512(call.x + i), _mm512_set1_epi16(0x7fff));
    least = _mm512_min_epu16(least, _mm512_sub_epi16(size, _mm512_set1_epi16(kLeastNormal)));
  }
  return _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(kLeast - kLeastNormal)) == 0;
}

// body(table, the Code that multiplies call's codes).
template <class Body>
void with_codes(const PanelCall& call, Body&& body) {
  const auto with = [&]<class Code>(Code* code, I table) { body(table, code); };
  const WeightType& type = call.expansion->type;
  if (type.codes == DType::kInt8) return with(static_cast<Int8Codes*>(nullptr), I{});
  const bool bf16_scales = type.scales == DType::kBF16 || type.scales == DType::kE8M0;
  const bool by_dots = bf16_scales && far_from_subnormal(call);
  if (type.codes == DType::kFp8) {
    return by_dots ? with(static_cast<Fp8Codes<true>*>(nullptr), I{})
                   : with(static_cast<Fp8Codes<false>*>(nullptr), I{});
  }
  const I table =
      table_of(type.codes == DType::kInt4 ? Expand512::TwosComplement::values() : Expand512::E2M1::values());
  by_dots ? with(static_cast<NibbleCodes<true>*>(nullptr), table)
          : with(static_cast<NibbleCodes<false>*>(nullptr), table);
}

}  // namespace

void gemm_codes_bf16_avx512(const PanelCall& call) {
  with_codes(call, [&]<class Code>(I table, Code*) { CodesGemm<Code>(call, table).run(); });
}

bool gemm_codes_as_amx(const PanelCall& call) {
  const int group = call.expansion->layout.group;
  const bool fp8 = call.expansion->type.codes == DType::kFp8;
  if (call.rows > 1 || !fp8 || (group % kTileDepth != 0 && group < call.depth)) return false;
  with_codes(call, [&]<class Code>(I table, Code*) {
    if constexpr (Code::kIsFp8) TiledCodesGemm<Code>(call, table).run();
  });
  return true;
}

}  // namespace computron::kernels
