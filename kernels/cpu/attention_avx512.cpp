// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/attention_ways_impl.h"
#include "kernels/cpu/simd512.h"

namespace computron::kernels {

void attend_avx512(const AttentionTiles& tiles) { attend_with<Lanes16>(tiles); }

}  // namespace computron::kernels
