// Compiled with AVX-512; nothing here runs unless best_isa() says so.
#include "kernels/cpu/gemm_f16_impl.h"
#include "kernels/cpu/simd512.h"

namespace computron::kernels {
namespace {

struct GemmLanes16 : Lanes16 {
  static constexpr int kDirectRows = kF16DirectRows;
  static constexpr int kSums = 24;
  // The lower (0) or upper (1) float16 of 16 pairs.
  template <int kHalf>
  static V widen_f16(const std::uint32_t* pairs) {
    const __m512i both = _mm512_loadu_si512(pairs);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(kHalf == 0 ? both : _mm512_srli_epi32(both, 16)));
  }
};

}  // namespace

void gemm_f16_avx512(const float* x, int rows, int depth, const std::byte* weight, int columns, float* tile,
                     float* scratch) {
  F16Gemm<GemmLanes16>(x, rows, depth, columns, scratch).run(weight, tile);
}

}  // namespace computron::kernels
