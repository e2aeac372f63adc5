// Adding to the residual stream, and scaling what goes to it.
#pragma once

namespace computron::kernels {

// inout[i] += x[i] + bias[i] for i < n (the sum in brackets first); bias may be null.
void add_residual(const float* x, const float* bias, int n, float* inout);

// inout[i] += x[i] for i < n.
void add(const float* x, int n, float* inout);

// inout[i] += factor × x[i] for i < n.
void add_scaled(const float* x, float factor, int n, float* inout);

// inout[i] *= factor for i < n.
void scale(float factor, int n, float* inout);

}  // namespace computron::kernels
