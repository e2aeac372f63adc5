// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/gemm_panels_impl.h"

namespace computron::kernels {
namespace {

struct GemmLanes16 {
  using V = __m512;
  using W = __m512;
  using Row = float;
  static constexpr int kCount = 16;
  static constexpr int kSums = 24;
  static V zero() { return _mm512_setzero_ps(); }
  static V load_sum(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V splat(float x) { return _mm512_set1_ps(x); }
  static V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
};

struct F32Format : GemmLanes16 {
  using Wide = F32Format;
  static constexpr int kBytes = 4, kSteps = 1;
  template <int kStep>
  static W load(const std::uint32_t* unit) {
    return _mm512_loadu_ps(unit);
  }
};

struct F16Format : GemmLanes16 {
  using Wide = F32Format;
  static constexpr int kBytes = 2, kSteps = 2, kDirectRows = 12;
  // The lower (0) or upper (1) float16 of 16 pairs. One permutation serves both steps.
  template <int kStep>
  static W load(const std::uint32_t* unit) {
    const __m512i halves = _mm512_permutexvar_epi16(lower_then_upper(), _mm512_loadu_si512(unit));
    return _mm512_cvtph_ps(kStep == 0 ? _mm512_castsi512_si256(halves) : _mm512_extracti64x4_epi64(halves, 1));
  }
  static __m512i lower_then_upper() {
    return _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16,
                            14, 12, 10, 8, 6, 4, 2, 0);
  }
};

}  // namespace

void gemm_f32_avx512(const PanelCall& call) { PanelGemm<F32Format>(call).run(); }
void gemm_f16_avx512(const PanelCall& call) { PanelGemm<F16Format>(call).run(); }

}  // namespace computron::kernels
