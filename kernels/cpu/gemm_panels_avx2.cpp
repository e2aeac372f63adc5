#include "kernels/cpu/gemm_panels_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

struct PanelLanes {
  using V = F8;
  using W = F8;
  using Row = float;
  static constexpr int kCount = kLanes, kMaxGroup = 6;
  static constexpr int kSums = 12;
  static V zero() { return kernels::splat(0); }
  static V load_sum(const float* p) { return kernels::load(p); }
  static V add(V a, V b) { return kernels::add(a, b); }
  static void store(float* p, V x) { kernels::store(p, x); }
  static V splat(float x) { return kernels::splat(x); }
  static V multiply_add(V a, V b, V c) { return kernels::fma(a, b, c); }
};

struct F32Format : PanelLanes {
  static constexpr int kDepth = 1, kParts = 1;
  using Unit = float;
  template <int>
  static W load(const float* unit) {
    return kernels::load(unit);
  }
};

struct F16Format : PanelLanes {
  static constexpr int kDepth = 1, kParts = 1;
  using Unit = std::uint16_t;
  template <int>
  static W load(const std::uint16_t* unit) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit)));
  }
};

// A pair of bfloat16: the first of them, and then the second, as the upper half of a float.
struct Bf16Format : PanelLanes {
  static constexpr int kDepth = 2, kParts = 2;
  using Unit = std::uint32_t;
  template <int kPart>
  static W load(const Unit* unit) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
    return _mm256_castsi256_ps(kPart == 0 ? _mm256_slli_epi32(pairs, 16)
                                          : _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
};

}  // namespace

void gemm_f32_avx2(const PanelCall& call) { PanelGemm<F32Format>(call).run(); }
void gemm_f16_avx2(const PanelCall& call) { PanelGemm<F16Format>(call).run(); }
void gemm_bf16_as_f32_avx2(const PanelCall& call) { PanelGemm<Bf16Format>(call).run(); }

}  // namespace computron::kernels
