#include "kernels/cpu/attention_ways_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {

void attend_avx2(const AttentionTiles& tiles) { attend_with<Lanes8>(tiles); }

}  // namespace computron::kernels
