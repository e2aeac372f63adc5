#include "kernels/cpu/gemm_panels_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

struct PanelLanes {
  using V = F8;
  using W = F8;
  using Row = float;
  static constexpr int kCount = kLanes, kDepth = 1;
  static constexpr int kSums = 12;
  static V zero() { return kernels::splat(0); }
  static V load_sum(const float* p) { return kernels::load(p); }
  static void store(float* p, V x) { kernels::store(p, x); }
  static V splat(float x) { return kernels::splat(x); }
  static V multiply_add(V a, V b, V c) { return kernels::fma(a, b, c); }
};

struct F32Format : PanelLanes {
  using Unit = float;
  static W load(const float* unit) { return kernels::load(unit); }
};

struct F16Format : PanelLanes {
  using Unit = std::uint16_t;
  static W load(const std::uint16_t* unit) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit)));
  }
};

}  // namespace

void gemm_f32_avx2(const PanelCall& call) { PanelGemm<F32Format>(call).run(); }
void gemm_f16_avx2(const PanelCall& call) { PanelGemm<F16Format>(call).run(); }

}  // namespace computron::kernels
