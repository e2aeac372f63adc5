// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/gemm_panels_impl.h"

namespace computron::kernels {
namespace {

struct GemmLanes16 {
  using V = __m512;
  using W = __m512;
  using Row = float;
  static constexpr int kCount = 16, kDepth = 1;
  static constexpr int kSums = 24;
  static V zero() { return _mm512_setzero_ps(); }
  static V load_sum(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V splat(float x) { return _mm512_set1_ps(x); }
  static V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
};

struct F32Format : GemmLanes16 {
  using Unit = float;
  static W load(const float* unit) { return _mm512_loadu_ps(unit); }
};

struct F16Format : GemmLanes16 {
  using Unit = std::uint16_t;
  static W load(const std::uint16_t* unit) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit)));
  }
};

}  // namespace

void gemm_f32_avx512(const PanelCall& call) { PanelGemm<F32Format>(call).run(); }
void gemm_f16_avx512(const PanelCall& call) { PanelGemm<F16Format>(call).run(); }

}  // namespace computron::kernels
