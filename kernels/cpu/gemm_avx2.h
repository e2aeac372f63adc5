// float32 GEMM over packed weights (pack.h) at the program's baseline, for processors that oneDNN has no fast kernel
// for (no AVX-512).
#pragma once

namespace computron::kernels {

// tile[m, n] = Σ_k x[m, k] weight[n, k]; x: [rows, depth], weight: [columns / 64][depth][64], tile: [rows, columns].
void gemm_avx2(const float* x, int rows, int depth, const float* weight, int columns, float* tile);

}  // namespace computron::kernels
