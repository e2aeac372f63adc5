// The end of a GEMM: bias, activation and conversion while a tile is copied into place.
#pragma once

#include <cstddef>

#include "computron/base/types.h"
#include "computron/kernels/types.h"

namespace computron::kernels {

// Sums and where they go.
struct ActivationTile {
  const float* x;  // [rows][columns], rows `x_stride` floats apart
  std::size_t x_stride;
  const float* bias;  // [columns], or null
  int rows, columns;
  std::byte* out;  // [rows][columns] of dtype, float32 or bfloat16, rows `out_stride` bytes apart;
                   // may be x where its rows lie no further apart
  std::size_t out_stride;
  DType dtype;
};

// out[r][i] = activation(x[r][i] + bias[i])
void activate(Activation activation, const ActivationTile& tile);

// inout[i] = cap × tanh(inout[i] / cap) for i < n.
void soft_cap(float cap, int n, float* inout);

// inout[i] += σ(gate) × x[i] for i < n.
void add_gated(float gate, const float* x, int n, float* inout);

// out[i] = `rule` of gate[i] and up[i] for i < n; out holds float32 or bfloat16.
void activate_gate(const Gate& rule, const float* gate, const float* up, int n, std::byte* out, DType dtype);

}  // namespace computron::kernels
