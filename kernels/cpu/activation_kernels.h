// The functions of activation.h by width of vectors. Results are equal, bit for bit.
#pragma once

#include "kernels/cpu/activation.h"

namespace computron::kernels {

struct ActivationKernels {
  decltype(&kernels::activate) activate;
  decltype(&kernels::activate_gate) activate_gate;
  decltype(&kernels::soft_cap) soft_cap;
  decltype(&kernels::add_gated) add_gated;
};

ActivationKernels activation_avx2();
ActivationKernels activation_avx512();

}  // namespace computron::kernels
