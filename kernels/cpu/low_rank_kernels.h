// The functions of low_rank.h by width of vectors. Results are equal, bit for bit: lanes hold sums of their own.
#pragma once

#include "kernels/cpu/low_rank.h"

namespace computron::kernels {

struct LowRankKernels {
  decltype(&kernels::add_low_rank_in) add_in;
  decltype(&kernels::add_low_rank_out) add_out;
};

LowRankKernels low_rank_avx2();
LowRankKernels low_rank_avx512();

}  // namespace computron::kernels
