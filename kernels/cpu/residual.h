// Adding to the residual stream.
#pragma once

namespace computron::kernels {

// inout[i] += x[i] + bias[i] for i < n (the sum in brackets first); bias may be null.
void add_residual(const float* x, const float* bias, int n, float* inout);

// inout[i] += x[i] for i < n.
void add(const float* x, int n, float* inout);

// inout[i] += factor × x[i] for i < n.
void add_scaled(const float* x, float factor, int n, float* inout);

}  // namespace computron::kernels
