#include "kernels/cpu/gemm_f16_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

struct GemmLanes8 {
  using V = F8;
  static constexpr int kCount = kLanes;
  static constexpr int kDirectRows = 2;
  static constexpr int kSums = 12;
  static V load(const float* p) { return kernels::load(p); }
  static void store(float* p, V x) { kernels::store(p, x); }
  static V splat(float x) { return kernels::splat(x); }
  static V fma(V a, V b, V c) { return kernels::fma(a, b, c); }
  // The lower (0) or upper (1) float16 of eight pairs.
  template <int kHalf>
  static V widen_f16(const std::uint32_t* pairs) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    const __m256i half = kHalf == 0 ? _mm256_and_si256(both, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(both, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0b1000);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }
};

}  // namespace

void gemm_f16_avx2(const float* x, int rows, int depth, const std::byte* weight, int columns, float* tile,
                   float* scratch) {
  F16Gemm<GemmLanes8>(x, rows, depth, columns, scratch).run(weight, tile);
}

}  // namespace computron::kernels
