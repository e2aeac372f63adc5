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

// As gemm_codes_bf16_avx512 for one row of fp8, with the bits of gemm_amx, which writes slices of values and reads them
// as tiles. Llama 3.2 1B at batch 1, two cores of a Xeon of family 6, model 207, in turns: 0.61 and 0.65 of a plain
// read against 0.50; two rows were slower. False, and nothing is done: anything else, or groups that are no multiple of
// a tile's 32 k.
bool gemm_codes_as_amx(const PanelCall& call);

}  // namespace computron::kernels
