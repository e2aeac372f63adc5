// x · wᵀ of few rows for quantised weights: codes become values in registers and are multiplied there, where
// gemm_panels writes slices of values and reads them again. The bits are those of gemm_panels.
//
// Up to four rows (float32: six) meet all 64 columns of a block together. More meet one half of them and then the
// other, so that their sums have room in registers and every code still becomes a value only once; more than twelve do
// so in two groups.
#pragma once

#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {

// More are for gemm_panels.
inline constexpr int kMostCodesRows = 16;

// Both require call.expansion, and at most kMostCodesRows rows. Of values of bfloat16, with AVX-512 BF16 and VBMI:
void gemm_codes_bf16_avx512(const PanelCall& call);
// Of values of float32:
void gemm_codes_f32_avx512(const PanelCall& call);

}  // namespace computron::kernels
