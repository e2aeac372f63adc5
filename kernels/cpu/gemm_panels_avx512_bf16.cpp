// Compiled with AVX-512 BF16; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/gemm_panels_impl.h"

namespace computron::kernels {
namespace {

// A step is a pair of k of a row and of 16 columns.
struct Bf16Format {
  using V = __m512;
  using W = __m512bh;
  using Row = std::uint32_t;
  using Unit = std::uint32_t;
  static constexpr int kCount = 16, kDepth = 2, kParts = 1, kMaxGroup = 6;
  static constexpr int kSums = 24;
  static V zero() { return _mm512_setzero_ps(); }
  static V load_sum(const float* p) { return _mm512_loadu_ps(p); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  template <int>
  static W load(const Unit* unit) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(unit));
  }
  static W splat(Row x) { return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))); }
  static V multiply_add(W x, W w, V sum) { return _mm512_dpbf16_ps(sum, x, w); }
};

}  // namespace

void gemm_bf16_avx512(const PanelCall& call) { PanelGemm<Bf16Format>(call).run(); }

}  // namespace computron::kernels
