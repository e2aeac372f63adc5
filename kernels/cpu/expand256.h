// Loads, floats of e4m3 and scales of expand_impl.h with AVX2. Everything is local to the including file.
#pragma once

#include <cstddef>

#include "kernels/cpu/expand_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

struct Expand256 : CodesAhead {
  struct V {
    F8 low, high;
  };

  static __m128i load64(const std::byte* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static __m128i load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m256i load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

  static V splat(float x) { return {kernels::splat(x), kernels::splat(x)}; }
  static V multiply(V a, V b) { return {mul(a.low, b.low), mul(a.high, b.high)}; }

  // Sign, exponent and mantissa of e4m3 where float16 has them: too small by 256.
  static V floats_of_e4m3(__m128i bytes) {
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i halves = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbf80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }

  static V load_scales(const std::byte* p, DType dtype, int v) {
    const std::size_t half = 8 * size_of(dtype);
    return {eight_scales(p + 2 * v * half, dtype), eight_scales(p + (2 * v + 1) * half, dtype)};
  }
  static V load_scales(const std::byte* p, const std::byte* factors, int v) {
    const V scales = multiply(floats_of_e4m3(load128(p + 16 * v)), splat(256));
    const std::byte* of_rows = factors + 128 * v;
    return {eight_products(scales.low, of_rows), eight_products(scales.high, of_rows + 64)};
  }
  static F8 eight_products(F8 scales, const std::byte* factors) {
    const auto* doubles = reinterpret_cast<const double*>(factors);
    const auto products = [](__m128 four, const double* of_rows) {
      return _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_cvtps_pd(four), _mm256_loadu_pd(of_rows)));
    };
    return _mm256_set_m128(products(_mm256_extractf128_ps(scales, 1), doubles + 4),
                           products(_mm256_castps256_ps128(scales), doubles));
  }
  static F8 eight_scales(const std::byte* p, DType dtype) {
    if (dtype == DType::kF32) return load(reinterpret_cast<const float*>(p));
    if (dtype == DType::kF16) return _mm256_cvtph_ps(load128(p));
    if (dtype == DType::kBF16) return load(reinterpret_cast<const Bf16*>(p));
    const __m256i powers = _mm256_slli_epi32(_mm256_cvtepu8_epi32(load64(p)), 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(powers, _mm256_set1_epi32(0x00400000)));  // 2^-127
  }
};

}  // namespace
}  // namespace computron::kernels
