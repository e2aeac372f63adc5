// LayerNorm and RMSNorm of rows.
#pragma once

#include <cstddef>

#include "computron/kernels/types.h"

struct CUstream_st;

namespace computron::kernels::cuda {

// out[r, :] = (x[r, :] - mean) / sqrt(variance + epsilon) × weight + bias, without the mean for RMSNorm; weight and
// bias may be null. x: [rows, columns] float32; out may be x.
struct NormCall {
  NormKind kind;
  const float* x;
  int rows;
  int columns;
  const float* weight;
  const float* bias;
  float epsilon;
  std::byte* out;
  DType dtype;
};
void norm(CUstream_st* stream, const NormCall& call);

}  // namespace computron::kernels::cuda
