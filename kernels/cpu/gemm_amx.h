// bfloat16 GEMM over packed weights (pack.h) with the AMX tile unit.
//
// Ours, because oneDNN 2.6 changes a row's bits with the number of rows when it uses AMX and because pack.h's layout is
// AMX's own: 16 pairs of k × 16 rows of a block are one tile. Measured on one Sapphire Rapids-class core,
// depth and columns 4096: at M = 1 97 % of a plain read of the same bytes (oneDNN's AMX 82 %), at M = 256 0.9–1.1
// TFLOP/s (oneDNN's AMX 0.7–0.9, oneDNN's AVX512_BF16 0.10; float32 0.17).
#pragma once

#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {

// x: bfloat16; weight: of that or expanded to it. Denormals count as zero.
void gemm_amx(const PanelCall& call);
// Of one block of 64 rows of the weight, into its part of the tile; at most 16 rows of x.
void gemm_amx_block(const PanelCall& call, const std::byte* block, float* tile);

}  // namespace computron::kernels
