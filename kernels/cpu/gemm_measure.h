// Which of the kernels and blockings that a type of weight can be multiplied with is the fastest on this machine, by a
// short measurement. All give the same bits (tests/ops/gemm_kernels_test.cpp), so that time decides nothing else.
#pragma once

#include <vector>

#include "kernels/cpu/gemm.h"

namespace computron::kernels {

// All that may be chosen for weights of `type`, the default first. One: there is nothing to choose.
std::vector<GemmChoice> gemm_candidates(const WeightType& type);

// What a program takes for it at its start.
inline constexpr double kMeasurement_s = 0.1;

// The fastest for few rows, of weights that no cache holds, by a kernel that is no slower for many; the default, unless
// another one takes 3 % less. One thread. Takes about `seconds`, and as long as it takes to write 48 MiB, which it
// holds meanwhile.
GemmChoice measure_gemm(const WeightType& type, double seconds);

}  // namespace computron::kernels
