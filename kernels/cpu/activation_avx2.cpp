#include "kernels/cpu/activation_impl.h"
#include "kernels/cpu/pair_lanes.h"
#include "kernels/cpu/simd.h"

namespace computron::kernels {

ActivationKernels activation_avx2() { return WideActivations<PairLanes<Lanes8>>::kernels(); }

}  // namespace computron::kernels
