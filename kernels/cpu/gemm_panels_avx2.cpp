#include "kernels/cpu/gemm_panels_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

struct Lanes8 {
  using V = F8;
  using W = F8;
  using Row = float;
  static constexpr int kCount = kLanes;
  static constexpr int kSums = 12;
  static V zero() { return kernels::splat(0); }
  static V load_sum(const float* p) { return kernels::load(p); }
  static void store(float* p, V x) { kernels::store(p, x); }
  static V splat(float x) { return kernels::splat(x); }
  static V multiply_add(V a, V b, V c) { return kernels::fma(a, b, c); }
};

struct F32Format : Lanes8 {
  using Wide = F32Format;
  static constexpr int kBytes = 4, kSteps = 1;
  template <int kStep>
  static W load(const std::uint32_t* unit) {
    return kernels::load(reinterpret_cast<const float*>(unit));
  }
};

struct F16Format : Lanes8 {
  using Wide = F32Format;
  static constexpr int kBytes = 2, kSteps = 2, kDirectRows = 2;
  // The lower (0) or upper (1) float16 of eight pairs.
  template <int kStep>
  static W load(const std::uint32_t* unit) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
    const __m256i half = kStep == 0 ? _mm256_and_si256(both, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(both, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0b1000);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }
};

}  // namespace

void gemm_f32_avx2(const PanelCall& call) { PanelGemm<F32Format>(call).run(); }
void gemm_f16_avx2(const PanelCall& call) { PanelGemm<F16Format>(call).run(); }

}  // namespace computron::kernels
