// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/activation_impl.h"
#include "kernels/cpu/pair_lanes.h"
#include "kernels/cpu/simd512.h"

namespace computron::kernels {

ActivationKernels activation_avx512() { return WideActivations<PairLanes<Lanes16>>::kernels(); }

}  // namespace computron::kernels
