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
};

}  // namespace

void expand_f32_avx512(const Expansion& e, const std::byte* block, int first, int count, std::byte* to) {
  Expander<F32Format>(e, block).run(first, count, to);
}

}  // namespace computron::kernels
