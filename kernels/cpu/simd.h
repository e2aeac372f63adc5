// Eight float lanes at the program's baseline (x86-64-v3), for kernels whose sums must have a fixed order.
//
// A loop over n columns runs whole vectors and then one partial vector of n % 8 lanes (load_first, store_first).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "computron/base/types.h"
#include "computron/base/vectors.h"

namespace computron::kernels {

using F8 = __m256;
inline constexpr int kLanes = 8;

// An element stored as bfloat16.
struct Bf16 {
  std::uint16_t bits;
};

// Calls body(T{}) with the element type of `dtype`, which is f32 or bf16.
template <class Body>
decltype(auto) with_element(DType dtype, Body&& body) {
  ensure(dtype != DType::kF16, "a CPU kernel was given float16");
  return dtype == DType::kF32 ? body(float{}) : body(Bf16{});
}

inline F8 splat(float x) { return _mm256_set1_ps(x); }
inline F8 add(F8 a, F8 b) { return _mm256_add_ps(a, b); }
inline F8 sub(F8 a, F8 b) { return _mm256_sub_ps(a, b); }
inline F8 mul(F8 a, F8 b) { return _mm256_mul_ps(a, b); }
inline F8 div(F8 a, F8 b) { return _mm256_div_ps(a, b); }
inline F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
inline F8 max(F8 a, F8 b) { return _mm256_max_ps(a, b); }  // b where a lane of either is NaN
inline F8 min(F8 a, F8 b) { return _mm256_min_ps(a, b); }  // b where a lane of either is NaN

inline F8 load(const float* p) { return _mm256_loadu_ps(p); }
inline F8 load(const Bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline void store(float* p, F8 x) { _mm256_storeu_ps(p, x); }

// Rounds to nearest even; NaN stays NaN. As bf16_from_f32.
inline void store(Bf16* p, F8 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0b1000);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// The first `count` < 8 lanes from or to p; the other lanes are zero, and their memory is not touched.
template <class T>
F8 load_first(const T* p, int count) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<std::size_t>(count) * sizeof(T));
  return load(lanes);
}
template <class T>
void store_first(T* p, F8 x, int count) {
  T lanes[kLanes];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<std::size_t>(count) * sizeof(T));
}

// out[i] = f(lanes of in...) for i < n, in vectors of eight. `f` maps F8s to an F8.
template <class Out, class F, class... In>
void map_lanes(int n, Out* out, F&& f, const In*... in) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(in + i)...));
  if (i < n) store_first(out + i, f(load_first(in + i, n - i)...), n - i);
}

// ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)).
inline float sum_lanes(F8 x) {
  x = _mm256_hadd_ps(x, x);
  x = _mm256_hadd_ps(x, x);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
// Lane i of the result is sum_lanes(x[i]), bit for bit.
inline F8 sum_lanes_of_each(const F8 (&x)[kLanes]) {
  const F8 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const F8 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}
inline float max_lanes(F8 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

inline constexpr float kLowestOfExp = -87.33654f;

// e^r of x = n ln 2 + r, |r| <= ln 2 / 2: a polynomial of degree 7.
inline F8 exp_of_remainder(F8 x, F8 n) {
  const F8 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
  F8 p = splat(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = fma(p, r, splat(c));
  }
  return add(fma(p, mul(r, r), r), splat(1.0f));
}

// e^x within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN for NaN. After the Cephes library's
// expf.
inline F8 exp(F8 x) {
  const F8 lowest = splat(kLowestOfExp);
  const F8 highest = splat(88.72283f);
  const F8 clamped = min(highest, max(lowest, x));
  const F8 n = _mm256_round_ps(mul(clamped, splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const F8 p = exp_of_remainder(clamped, n);
  // 2^n in two factors, since n reaches 128.
  const __m256i half = _mm256_srai_epi32(_mm256_cvtps_epi32(n), 1);
  const __m256i rest = _mm256_sub_epi32(_mm256_cvtps_epi32(n), half);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  const F8 value = mul(mul(p, power(half)), power(rest));
  const F8 capped = _mm256_blendv_ps(value, splat(__builtin_inff()), _mm256_cmp_ps(x, highest, _CMP_GT_OQ));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), capped);
}

// These vectors, for what is written once for all widths (Lanes16 of simd512.h is the other).
struct Lanes8 {
  using V = F8;
  using Bf16 = kernels::Bf16;
  static constexpr int kCount = kLanes;
  static constexpr int kWide = 2;  // vectors beside six queries: twelve sums, two keys and a query in 16 registers

  static float widen(float x) { return x; }
  static float widen(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
  template <class T>
  static V load(const T* p) {
    return kernels::load(p);
  }
  template <class T>
  static V load_first(const T* p, int count) {
    return kernels::load_first(p, count);
  }
  template <class T>
  static void store(T* p, V x) {
    kernels::store(p, x);
  }
  template <class T>
  static void store_first(T* p, V x, int count) {
    kernels::store_first(p, x, count);
  }
  static V splat(float x) { return kernels::splat(x); }
  static V add(V a, V b) { return kernels::add(a, b); }
  static V sub(V a, V b) { return kernels::sub(a, b); }
  static V mul(V a, V b) { return kernels::mul(a, b); }
  static V div(V a, V b) { return kernels::div(a, b); }
  static V fma(V a, V b, V c) { return kernels::fma(a, b, c); }
  static V max(V a, V b) { return kernels::max(a, b); }
  static V min(V a, V b) { return kernels::min(a, b); }
  static V negate(V x) { return _mm256_xor_ps(x, splat(-0.0f)); }
  static V magnitude(V x) { return _mm256_andnot_ps(splat(-0.0f), x); }
  // x, which is not negative, with the sign of another.
  static V with_sign(V x, V of) { return _mm256_or_ps(x, _mm256_and_ps(splat(-0.0f), of)); }
  // `negative` where x has its sign bit.
  static V by_sign(V x, V negative, V otherwise) { return _mm256_blendv_ps(otherwise, negative, x); }
  static V exp(V x) { return kernels::exp(x); }
  static V nearest_integer(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x × 2^n for integers n from -126 to 127; 0 where n is less, NaN where n is.
  static V times_exp2(V x, V n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    const V value = mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    return _mm256_andnot_ps(_mm256_cmp_ps(n, splat(-126.0f), _CMP_LT_OQ), value);
  }
  static float first(V x) { return _mm256_cvtss_f32(x); }
  // Lanes [begin, end) of x, which may reach beyond those that there are; others of `otherwise`.
  static V within(int begin, int end, V x, V otherwise) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lanes);
    const __m256i inside = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lanes));
    return _mm256_blendv_ps(otherwise, x, _mm256_castsi256_ps(inside));
  }
  static float sum_lanes(V x) { return kernels::sum_lanes(x); }
  static float max_lanes(V x) { return kernels::max_lanes(x); }

  // Row i becomes column i.
  static void transpose(V (&rows)[kCount]) {
    V pairs[kCount];
    for (int i = 0; i < kCount; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    V halves[kCount];  // half h of halves[4 i + j]: column 4 h + j of rows 4 i on
    for (int i = 0; i < kCount; i += 4) {
      halves[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      halves[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      halves[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      halves[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      rows[j] = _mm256_permute2f128_ps(halves[j], halves[4 + j], 0x20);
      rows[4 + j] = _mm256_permute2f128_ps(halves[j], halves[4 + j], 0x31);
    }
  }
};

}  // namespace computron::kernels
