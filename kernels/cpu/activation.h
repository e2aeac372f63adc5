// The end of a GEMM: bias, activation and conversion while a tile is copied into place.
#pragma once

#include <cstddef>

#include "computron/base/types.h"
#include "computron/kernels/types.h"

namespace computron::kernels {

// out[i] = activation(x[i] + bias[i]) for i < n; bias may be null; out holds float32 or bfloat16 and may be x.
void activate(Activation activation, const float* x, const float* bias, int n, std::byte* out, DType dtype);

// inout[i] = cap × tanh(inout[i] / cap) for i < n.
void soft_cap(float cap, int n, float* inout);

// inout[i] += σ(gate) × x[i] for i < n.
void add_gated(float gate, const float* x, int n, float* inout);

// out[i] = `rule` of gate[i] and up[i] for i < n; out holds float32 or bfloat16.
void activate_gate(const Gate& rule, const float* gate, const float* up, int n, std::byte* out, DType dtype);

}  // namespace computron::kernels
