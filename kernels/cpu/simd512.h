// Sixteen float lanes, for files compiled with AVX-512. Everything is local to the including file (isa.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace computron::kernels {
namespace {

inline constexpr float kLowestOfExp16 = -87.33654f;

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

// As exp_of_remainder of simd.h.
inline __m512 exp_of_remainder(__m512 x, __m512 n) {
  const __m512 r =
      _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x));
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  }
  return _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
}

// Rounded to bfloat16, to nearest even; NaN stays NaN. As store of simd.h.
inline __m256i upper_halves(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i kept = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

struct Lanes16 {
  using V = __m512;
  struct Bf16 {
    std::uint16_t bits;
  };
  static constexpr int kCount = 16;
  static constexpr int kWide = 4;  // vectors beside six queries: 24 sums, four keys and a query in 32 registers

  static float widen(float x) { return x; }
  static float widen(Bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load(const Bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static void store(Bf16* p, V x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), upper_halves(x)); }

  // The first `count` < 16 lanes from or to p; the other lanes are zero, and their memory is not touched.
  static V load_first(const float* p, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
  static V load_first(const Bf16* p, int count) {
    const __m256i half = _mm256_maskz_loadu_epi16(first_lanes(count), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static void store_first(float* p, V x, int count) { _mm512_mask_storeu_ps(p, first_lanes(count), x); }
  static void store_first(Bf16* p, V x, int count) { _mm256_mask_storeu_epi16(p, first_lanes(count), upper_halves(x)); }

  static V splat(float x) { return _mm512_set1_ps(x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where a lane of either is NaN
  static V min(V a, V b) { return _mm512_min_ps(a, b); }  // b where a lane of either is NaN
  static V negate(V x) { return _mm512_xor_ps(x, splat(-0.0f)); }
  static V magnitude(V x) { return _mm512_andnot_ps(splat(-0.0f), x); }
  static V with_sign(V x, V of) { return _mm512_or_ps(x, _mm512_and_ps(splat(-0.0f), of)); }
  // `negative` where x has its sign bit.
  static V by_sign(V x, V negative, V otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_movepi32_mask(_mm512_castps_si512(x)), negative);
  }
  static float first(V x) { return _mm512_cvtss_f32(x); }
  // As within of simd.h.
  static V within(int begin, int end, V x, V otherwise) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 inside = _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32(end));
    return _mm512_mask_mov_ps(otherwise, _mm512_mask_cmpge_epi32_mask(inside, lanes, _mm512_set1_epi32(begin)), x);
  }

  // Upper half to lower half, then again.
  static float sum_lanes(V x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
  }
  static float max_lanes(V x) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 max = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    return _mm_cvtss_f32(_mm_max_ss(max, _mm_shuffle_ps(max, max, 1)));
  }

  // Row i becomes column i.
  static void transpose(V (&rows)[kCount]) {
    V pairs[kCount], quarters[kCount];  // quarter q of quarters[4 i + j]: column 4 q + j of rows 4 i on
    for (int i = 0; i < kCount; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    const auto low = [](V a, V b) {
      return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto high = [](V a, V b) {
      return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    for (int i = 0; i < kCount; i += 4) {
      quarters[i] = low(pairs[i], pairs[i + 2]);
      quarters[i + 1] = high(pairs[i], pairs[i + 2]);
      quarters[i + 2] = low(pairs[i + 1], pairs[i + 3]);
      quarters[i + 3] = high(pairs[i + 1], pairs[i + 3]);
    }
    constexpr int kEven = 0x88, kOdd = 0xdd;  // of four quarters, of either operand
    for (int j = 0; j < 4; ++j) {
      const V even_a = _mm512_shuffle_f32x4(quarters[j], quarters[4 + j], kEven);
      const V even_b = _mm512_shuffle_f32x4(quarters[8 + j], quarters[12 + j], kEven);
      const V odd_a = _mm512_shuffle_f32x4(quarters[j], quarters[4 + j], kOdd);
      const V odd_b = _mm512_shuffle_f32x4(quarters[8 + j], quarters[12 + j], kOdd);
      rows[j] = _mm512_shuffle_f32x4(even_a, even_b, kEven);
      rows[4 + j] = _mm512_shuffle_f32x4(odd_a, odd_b, kEven);
      rows[8 + j] = _mm512_shuffle_f32x4(even_a, even_b, kOdd);
      rows[12 + j] = _mm512_shuffle_f32x4(odd_a, odd_b, kOdd);
    }
  }

  // As exp of simd.h, 2^n by the processor's own scaling.
  static V exp(V x) {
    const V lowest = splat(kLowestOfExp16), highest = splat(88.72283f);
    const V clamped = _mm512_min_ps(highest, _mm512_max_ps(lowest, x));
    const V n = _mm512_roundscale_ps(mul(clamped, splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V value = _mm512_scalef_ps(exp_of_remainder(clamped, n), n);
    const V capped = _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, highest, _CMP_GT_OQ), splat(__builtin_inff()));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), capped);
  }
  static V nearest_integer(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // As times_exp2 of simd.h.
  static V times_exp2(V x, V n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, splat(-126.0f), _CMP_NLT_UQ), x, n);
  }
};

}  // namespace
}  // namespace computron::kernels
