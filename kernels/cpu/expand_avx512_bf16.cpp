// Compiled with AVX-512 BF16; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/expand512.h"

namespace computron::kernels {
namespace {

struct Bf16Format : Expand512 {
  static constexpr int kPairBytes = 128 * 2;
  // Both k of a row.
  static void spread(const V (&rows)[4], V (&codes)[8]) {
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
    for (int j = 0; j < 8; ++j) codes[j] = _mm512_permutexvar_ps(j % 2 == 0 ? low : high, rows[j / 2]);
  }
  static void store(std::byte* to, V a, V b) {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
  }
};

}  // namespace

void expand_bf16_avx512(const Expansion& e, const std::byte* block, int first, int count, std::byte* to) {
  Expander<Bf16Format>(e, block).run(first, count, to);
}

}  // namespace computron::kernels
