// Sixteen float lanes, for files compiled with AVX-512. Everything is local to the including file (isa.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace computron::kernels {
namespace {

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
  static V splat(float x) { return _mm512_set1_ps(x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where a lane of either is NaN
  static float first(V x) { return _mm512_cvtss_f32(x); }

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

  // As exp of simd.h, 2^n by the processor's own scaling.
  static V exp(V x) {
    const V lowest = splat(-87.33654f), highest = splat(88.72283f);
    const V clamped = _mm512_min_ps(highest, _mm512_max_ps(lowest, x));
    const V n = _mm512_roundscale_ps(mul(clamped, splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
    V p = splat(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
      p = fma(p, r, splat(c));
    }
    p = add(fma(p, mul(r, r), r), splat(1.0f));
    const V value = _mm512_scalef_ps(p, n);
    const V capped = _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, highest, _CMP_GT_OQ), splat(__builtin_inff()));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), capped);
  }
};

}  // namespace
}  // namespace computron::kernels
