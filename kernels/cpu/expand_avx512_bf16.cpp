// Compiled with AVX-512 BF16; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/expand512.h"

namespace computron::kernels {
namespace {

struct Bf16Format : Expand512, Bf16Spread {
  using V = __m512;
  static constexpr int kPairBytes = 128 * 2;
  static constexpr auto kAhead = _MM_HINT_T1;
  static void store(std::byte* to, V a, V b) {
    _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
  }
};

}  // namespace

void expand_bf16_avx512(const Expansion& e, const std::byte* block, int first, int count, std::byte* to) {
  Expander<Bf16Format>(e, block).run(first, count, to);
}

}  // namespace computron::kernels
