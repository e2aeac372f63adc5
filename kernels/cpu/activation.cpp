#include "kernels/cpu/activation.h"

#include <limits>

#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

constexpr float kSqrtHalf = 0.70710678f;

F8 negate(F8 x) { return _mm256_xor_ps(x, splat(-0.0f)); }

// x / (1 + e^-t): x times the logistic function of t.
F8 gated(F8 x, F8 t) { return div(x, add(splat(1), exp(negate(t)))); }

// Both keep their relative precision in the negative tail, where 1 + tanh(u) = 2 / (1 + e^-2u) nears 0.
F8 gelu_tanh(F8 x) {
  const F8 inner = mul(x, fma(mul(x, x), splat(0.044715f), splat(1)));
  return gated(x, mul(inner, splat(1.5957691f)));  // 2 sqrt(2 / pi)
}
F8 silu(F8 x) { return gated(x, x); }
F8 quick_gelu(F8 x) { return gated(x, mul(x, splat(1.702f))); }

// erfc(x) for x >= 0, relative error < 1.2e-7 before rounding: Numerical Recipes, section 6.2 (erfcc).
F8 erfc_positive(F8 x) {
  const F8 t = div(splat(1), fma(x, splat(0.5f), splat(1)));
  F8 p = splat(0.17087277f);
  for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                        1.00002368f, -1.26551223f}) {
    p = fma(p, t, splat(c));
  }
  return mul(t, exp(fma(negate(x), x, p)));
}

// x (1 + erf(x / sqrt 2)) / 2, and 1 + erf(z) = erfc(-z).
F8 gelu_erf(F8 x) {
  const F8 z = mul(x, splat(kSqrtHalf));
  const F8 tail = erfc_positive(_mm256_andnot_ps(splat(-0.0f), z));
  const F8 twice = _mm256_blendv_ps(sub(splat(2), tail), tail, z);
  return mul(mul(x, splat(0.5f)), twice);
}

// (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x.
F8 tanh(F8 x) {
  const F8 sign = _mm256_and_ps(splat(-0.0f), x);
  const F8 e = exp(mul(_mm256_andnot_ps(splat(-0.0f), x), splat(-2)));
  return _mm256_or_ps(div(sub(splat(1), e), add(splat(1), e)), sign);
}

F8 relu(F8 x) { return max(splat(0), x); }

// Calls body(f) with the activation as a function of F8.
template <class Body>
void with_activation(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::kNone:
      return body([](F8 x) { return x; });
    case Activation::kRelu:
      return body([](F8 x) { return relu(x); });
    case Activation::kGeluTanh:
      return body([](F8 x) { return gelu_tanh(x); });
    case Activation::kGeluErf:
      return body([](F8 x) { return gelu_erf(x); });
    case Activation::kSilu:
      return body([](F8 x) { return silu(x); });
    case Activation::kTanh:
      return body([](F8 x) { return tanh(x); });
    case Activation::kQuickGelu:
      return body([](F8 x) { return quick_gelu(x); });
  }
}

template <class F, class T>
void apply(F f, const float* x, const float* bias, int n, T* out) {
  if (bias == nullptr) return map_lanes(n, out, f, x);
  map_lanes(
      n, out, [f](F8 v, F8 b) { return f(add(v, b)); }, x, bias);
}

}  // namespace

void activate(Activation activation, const float* x, const float* bias, int n, std::byte* out, DType dtype) {
  with_element(dtype, [&]<class T>(T) {
    with_activation(activation, [&](auto f) { apply(f, x, bias, n, reinterpret_cast<T*>(out)); });
  });
}

void soft_cap(float cap, int n, float* inout) {
  map_lanes(
      n, inout, [c = splat(cap), inverse = splat(1 / cap)](F8 x) { return mul(c, tanh(mul(x, inverse))); }, inout);
}

void add_gated(float gate, const float* x, int n, float* inout) {
  const F8 weight = gated(splat(1), splat(gate));
  map_lanes(
      n, inout, [weight](F8 v, F8 sum) { return fma(weight, v, sum); }, x, inout);
}

void activate_gate(const Gate& rule, const float* gate, const float* up, int n, std::byte* out, DType dtype) {
  const bool plain = rule.limit == 0 && rule.offset == 0;
  const F8 most = splat(rule.limit > 0 ? rule.limit : std::numeric_limits<float>::infinity()), least = negate(most);
  const F8 offset = splat(rule.offset);
  with_element(dtype, [&]<class T>(T) {
    T* to = reinterpret_cast<T*>(out);
    with_activation(rule.activation, [&](auto f) {
      if (plain) {
        return map_lanes(
            n, to, [f](F8 g, F8 u) { return mul(f(g), u); }, gate, up);
      }
      const auto limited = [=](F8 g, F8 u) { return mul(f(min(most, g)), add(max(least, min(most, u)), offset)); };
      map_lanes(n, to, limited, gate, up);
    });
  });
}

}  // namespace computron::kernels
