// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/expand512.h"

namespace computron::kernels {
namespace {

struct F32Format : Expand512 {
  static constexpr int kPairBytes = 128 * 4;
  static constexpr auto kAhead = _MM_HINT_T0;
  static void spread(const V (&rows)[4], V (&codes)[8]) {
    for (int j = 0; j < 8; ++j) codes[j] = rows[j % 4];
  }
  static void store(std::byte* to, V a, V b) {
    _mm512_storeu_ps(to, a);
    _mm512_storeu_ps(to + 64, b);
  }
  static void widen_halves(const std::byte* from, std::byte* to) {
    for (int i = 0; i < 128; i += 16, from += 32, to += 64) {
      _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
    }
  }
  static void widen_pairs(const std::byte* from, std::byte* to) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    for (int i = 0; i < kRowBlock; i += 16, from += 64, to += 64) {
      const __m512i pairs = _mm512_loadu_si512(from);
      _mm512_storeu_si512(to, _mm512_slli_epi32(pairs, 16));
      _mm512_storeu_si512(to + kPairBytes / 2, _mm512_and_si512(pairs, upper));
    }
  }
};

}  // namespace

void expand_f32_avx512(const Expansion& e, const std::byte* block, int first, int count, std::byte* to) {
  Expander<F32Format>(e, block).run(first, count, to);
}

}  // namespace computron::kernels
