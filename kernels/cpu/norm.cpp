#include "kernels/cpu/norm.h"

#include <cmath>

#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

// Σ f(x[i]) in four chains of eight lanes: vector v goes to chain v % 4. `f` maps zero lanes of a partial vector too,
// so those are masked.
template <class F>
float sum(const float* x, int n, F&& f) {
  F8 chains[4] = {splat(0), splat(0), splat(0), splat(0)};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int c = 0; c < 4; ++c) chains[c] = add(chains[c], f(load(x + i + c * kLanes)));
  }
  for (int c = 0; i + kLanes <= n; i += kLanes, ++c) chains[c] = add(chains[c], f(load(x + i)));
  float tail[kLanes] = {};
  if (i < n) store_first(tail, f(load_first(x + i, n - i)), n - i);
  return sum_lanes(add(add(add(chains[0], chains[1]), add(chains[2], chains[3])), load(tail)));
}

template <class T>
void normalise_plus_one(const float* x, int n, float scale, const float* weight, const float* bias, T* out) {
  const auto z = [s = splat(scale), one = splat(1)](F8 v, F8 w) { return mul(mul(v, s), add(w, one)); };
  if (bias == nullptr) return map_lanes(n, out, z, x, weight);
  map_lanes(
      n, out, [z](F8 v, F8 w, F8 b) { return add(z(v, w), b); }, x, weight, bias);
}

template <class T>
void normalise(const float* x, int n, float mean, float scale, const float* weight, const float* bias, T* out) {
  const F8 m = splat(mean), s = splat(scale);
  const auto z = [=](F8 v) { return mul(sub(v, m), s); };
  if (weight == nullptr && bias == nullptr) return map_lanes(n, out, z, x);
  if (bias == nullptr)
    return map_lanes(
        n, out, [=](F8 v, F8 w) { return mul(z(v), w); }, x, weight);
  if (weight == nullptr)
    return map_lanes(
        n, out, [=](F8 v, F8 b) { return add(z(v), b); }, x, bias);
  map_lanes(
      n, out, [=](F8 v, F8 w, F8 b) { return fma(z(v), w, b); }, x, weight, bias);
}

}  // namespace

void norm(NormKind kind, const float* x, int n, const float* weight, const float* bias, float epsilon, std::byte* out,
          DType dtype) {
  const auto count = static_cast<float>(n);
  const float mean = kind == NormKind::kLayerNorm ? sum(x, n, [](F8 v) { return v; }) / count : 0.0f;
  const float squares = sum(x, n, [m = splat(mean)](F8 v) { return mul(sub(v, m), sub(v, m)); });
  const float scale = 1.0f / std::sqrt(squares / count + epsilon);
  with_element(dtype, [&]<class T>(T) {
    if (kind == NormKind::kRmsNormPlusOne && weight != nullptr) {
      return normalise_plus_one(x, n, scale, weight, bias, reinterpret_cast<T*>(out));
    }
    normalise(x, n, mean, scale, weight, bias, reinterpret_cast<T*>(out));
  });
}

float sum_of_squares(const float* x, int n) {
  return sum(x, n, [](F8 v) { return mul(v, v); });
}

void apply_norm(NormKind kind, float scale, const float* weight, int n, float* inout) {
  if (kind == NormKind::kRmsNormPlusOne) return normalise_plus_one(inout, n, scale, weight, nullptr, inout);
  normalise(inout, n, /*mean=*/0, scale, weight, nullptr, inout);
}

}  // namespace computron::kernels
