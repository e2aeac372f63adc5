#include "kernels/cpu/low_rank_impl.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {

LowRankKernels low_rank_avx2() { return WideLowRank<Lanes8>::kernels(); }

}  // namespace computron::kernels
