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
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V splat(float x) { return _mm512_set1_ps(x); }
  static V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  // GCC 12 loads an element that several products use into a register.
  static V multiply_add_at(const float* x, V w, V sum) {
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*x));
    return sum;
  }
};

struct F32Format : GemmLanes16 {
  static constexpr int kDepth = 1, kParts = 1, kMaxGroup = 6;
  using Unit = float;
  template <int>
  static W load(const float* unit) {
    return _mm512_loadu_ps(unit);
  }
};

// More rows than six share a weight, meeting half the vectors of a block at a time, since widening takes the pipes that
// multiply.
struct F16Format : GemmLanes16 {
  static constexpr int kDepth = 1, kParts = 1, kMaxGroup = 12;
  using Unit = std::uint16_t;
  template <int>
  static W load(const std::uint16_t* unit) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit)));
  }
};

// A pair of bfloat16: the first of them, and then the second, as the upper half of a float. More rows than six share it
// for the same reason.
struct Bf16Format : GemmLanes16 {
  static constexpr int kDepth = 2, kParts = 2, kMaxGroup = 12;
  using Unit = std::uint32_t;
  template <int kPart>
  static W load(const Unit* unit) {
    const __m512i pairs = _mm512_loadu_si512(unit);
    return _mm512_castsi512_ps(kPart == 0 ? _mm512_slli_epi32(pairs, 16)
                                          : _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
};

}  // namespace

void gemm_f32_avx512(const PanelCall& call) { PanelGemm<F32Format>(call).run(); }
void gemm_f16_avx512(const PanelCall& call) { PanelGemm<F16Format>(call).run(); }
void gemm_bf16_as_f32_avx512(const PanelCall& call) { PanelGemm<Bf16Format>(call).run(); }

}  // namespace computron::kernels
