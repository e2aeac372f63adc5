// Codes and scales of expand_impl.h with AVX-512. Everything is local to the including file (isa.h).
#pragma once

#include <cstddef>

#include "kernels/cpu/expand_impl.h"

namespace computron::kernels {
namespace {

struct Expand512 : CodesAhead {
  using V = __m512;
  struct Two {
    V first, second;
  };

  struct Int8 {
    static constexpr int kPairBytes = 128;
    const std::byte* codes;
    explicit Int8(const std::byte* p) : codes(p) {}
    V sixteen(int first) const {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + first));
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
    template <int kPart>
    Two floats() const {
      return {sixteen(32 * kPart), sixteen(32 * kPart + 16)};
    }
  };

  // A permutation reads four bits of each lane.
  template <class Table>
  struct Nibbles {
    static constexpr int kPairBytes = 64;
    __m512i words;
    explicit Nibbles(const std::byte* p) : words(_mm512_loadu_si512(p)) {}
    template <int kPart>
    Two floats() const {
      const V values = Table::values();
      return {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * kPart), values),
              _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * kPart + 4), values)};
    }
  };
  struct TwosComplement {
    static V values() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1); }
  };
  struct E2M1 {
    static V values() { return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6); }
  };
  using Int4 = Nibbles<TwosComplement>;
  using Fp4 = Nibbles<E2M1>;

  // Sign, exponent and mantissa of e4m3 where float16 has them: too small by 256.
  static __m512i halves_of_e4m3(__m256i bytes) {
    const __m512i shifted = _mm512_slli_epi16(_mm512_cvtepi8_epi16(bytes), 7);
    return _mm512_and_si512(shifted, _mm512_set1_epi16(static_cast<short>(0xbf80)));
  }

  struct Fp8 {
    static constexpr int kPairBytes = 128;
    static constexpr float kFactor = 256;
    const std::byte* codes;
    explicit Fp8(const std::byte* p) : codes(p) {}
    template <int kPart>
    Two floats() const {
      const __m512i halves = halves_of_e4m3(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * kPart)));
      return {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
    }
  };

  static V splat(float x) { return _mm512_set1_ps(x); }
  static V multiply(V a, V b) { return _mm512_mul_ps(a, b); }

  static V load_scales(const std::byte* p, DType dtype, int v) {
    if (dtype == DType::kF32) return _mm512_loadu_ps(p + 64 * v);
    if (dtype == DType::kE8M0) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * v));
      const __m512i powers = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
      return _mm512_castsi512_ps(_mm512_max_epu32(powers, _mm512_set1_epi32(0x00400000)));  // 2^-127
    }
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * v));
    if (dtype == DType::kF16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static V load_scales(const std::byte* p, const std::byte* factors, int v) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * v));
    const __m512i halves = halves_of_e4m3(_mm256_castsi128_si256(bytes));
    const V scales = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), splat(256));
    const auto products = [&](__m256 eight, int first) {
      const __m512d of_rows = _mm512_loadu_pd(factors + 128 * v + 8 * first);
      return _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_cvtps_pd(eight), of_rows));
    };
    const __m256 low = products(_mm512_castps512_ps256(scales), 0);
    const __m256 high = products(_mm512_extractf32x8_ps(scales, 1), 8);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
  static bool all_safe(V scales, float smallest = kSmallestSafe) {
    const V size = _mm512_abs_ps(scales);
    const __mmask16 large_enough = _mm512_cmp_ps_mask(size, splat(smallest), _CMP_GE_OQ);
    const __mmask16 safe = _mm512_mask_cmp_ps_mask(large_enough, size, splat(kLargestSafe), _CMP_LT_OQ);
    const __m512i bits = _mm512_castps_si512(size);
    return static_cast<__mmask16>(safe | _mm512_testn_epi32_mask(bits, bits)) == 0xffff;
  }
};

// For values of bfloat16: both k of a row follow each other.
struct Bf16Spread {
  using V = __m512;
  static void spread(const V (&rows)[4], V (&codes)[8]) {
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
    for (int j = 0; j < 8; ++j) codes[j] = _mm512_permutexvar_ps(j % 2 == 0 ? low : high, rows[j / 2]);
  }
};

}  // namespace
}  // namespace computron::kernels
