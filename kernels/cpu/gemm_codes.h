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

// More are for gemm_amx.
inline constexpr int kMostCodesRowsAsAmx = 2;

// As gemm_codes_bf16_avx512 for codes of eight bits, with the bits of gemm_amx, which writes slices of values and reads
// them as tiles. In turns on one core (Xeon of family 6, model 207, with neighbours): one row of int8 6.2 against 3.9
// GB/s, of fp8 5.3 against 3.5; two rows 4.5 against 3.8, 4.2 against 3.5; four, and four bits, no faster. False, and
// nothing is done: more rows or fewer bits than that, or groups that are no multiple of a tile's 32 k.
bool gemm_codes_as_amx(const PanelCall& call);

}  // namespace computron::kernels
