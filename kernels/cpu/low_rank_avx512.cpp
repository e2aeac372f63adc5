// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/low_rank_impl.h"
#include "kernels/cpu/simd512.h"

namespace computron::kernels {

LowRankKernels low_rank_avx512() { return WideLowRank<Lanes16>::kernels(); }

}  // namespace computron::kernels
