#include "kernels/cpu/residual.h"

#include "kernels/cpu/simd.h"

namespace computron::kernels {

void add_residual(const float* x, const float* bias, int n, float* inout) {
  if (bias == nullptr) return add(x, n, inout);
  map_lanes(
      n, inout, [](F8 h, F8 v, F8 b) { return add(h, add(v, b)); }, inout, x, bias);
}

void add(const float* x, int n, float* inout) {
  map_lanes(
      n, inout, [](F8 h, F8 v) { return add(h, v); }, inout, x);
}

void add_scaled(const float* x, float factor, int n, float* inout) {
  map_lanes(
      n, inout, [f = splat(factor)](F8 v, F8 sum) { return fma(v, f, sum); }, x, inout);
}

void scale(float factor, int n, float* inout) {
  map_lanes(
      n, inout, [f = splat(factor)](F8 v) { return mul(v, f); }, inout);
}

}  // namespace computron::kernels
