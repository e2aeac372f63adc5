// The template behind activation_avx2 and activation_avx512 (activation_kernels.h). Everything is local to the
// including file: code compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstddef>

#include "kernels/cpu/activation_kernels.h"

namespace computron::kernels {
namespace {

inline constexpr float kSqrtHalf = 0.70710678f;

// L: V, kCount; load, load_first, store, store_first of float and Bf16; splat, add, sub, mul, div, fma, max, min, exp,
// exp_below_88; negate, magnitude, sign_bits, with_bits, by_sign.
template <class L>
struct WideActivations {
  using V = typename L::V;

  // x / (1 + e^-t): x times the logistic function of t.
  static V gated(V x, V t) { return L::div(x, L::add(L::splat(1), L::exp(L::negate(t)))); }

  // Both keep their relative precision in the negative tail, where 1 + tanh(u) = 2 / (1 + e^-2u) nears 0.
  static V gelu_tanh(V x) {
    const V inner = L::mul(x, L::fma(L::mul(x, x), L::splat(0.044715f), L::splat(1)));
    return gated(x, L::mul(inner, L::splat(1.5957691f)));  // 2 sqrt(2 / pi)
  }
  static V silu(V x) { return gated(x, x); }
  static V quick_gelu(V x) { return gated(x, L::mul(x, L::splat(1.702f))); }

  // erfc(x) for x >= 0, relative error < 1.2e-7 before rounding: Numerical Recipes, section 6.2 (erfcc).
  static V erfc_positive(V x) {
    const V t = L::div(L::splat(1), L::fma(x, L::splat(0.5f), L::splat(1)));
    V p = L::splat(0.17087277f);
    for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                          1.00002368f, -1.26551223f}) {
      p = L::fma(p, t, L::splat(c));
    }
    return L::mul(t, L::exp_below_88(L::fma(L::negate(x), x, p)));
  }

  // x (1 + erf(x / sqrt 2)) / 2, and 1 + erf(z) = erfc(-z).
  static V gelu_erf(V x) {
    const V z = L::mul(x, L::splat(kSqrtHalf));
    const V tail = erfc_positive(L::magnitude(z));
    const V twice = L::by_sign(z, tail, L::sub(L::splat(2), tail));
    return L::mul(L::mul(x, L::splat(0.5f)), twice);
  }

  // (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x.
  static V tanh(V x) {
    const V e = L::exp_below_88(L::mul(L::magnitude(x), L::splat(-2)));
    return L::with_bits(L::div(L::sub(L::splat(1), e), L::add(L::splat(1), e)), L::sign_bits(x));
  }

  static V relu(V x) { return L::max(L::splat(0), x); }

  // Calls body(f) with the activation as a function of V.
  template <class Body>
  static void with_activation(Activation activation, Body&& body) {
    switch (activation) {
      case Activation::kNone:
        return body([](V x) { return x; });
      case Activation::kRelu:
        return body([](V x) { return relu(x); });
      case Activation::kGeluTanh:
        return body([](V x) { return gelu_tanh(x); });
      case Activation::kGeluErf:
        return body([](V x) { return gelu_erf(x); });
      case Activation::kSilu:
        return body([](V x) { return silu(x); });
      case Activation::kTanh:
        return body([](V x) { return tanh(x); });
      case Activation::kQuickGelu:
        return body([](V x) { return quick_gelu(x); });
    }
  }

  // out[i] = f(lanes of in...) for i < n.
  template <class Out, class F, class... In>
  static void map(int n, Out* out, F&& f, const In*... in) {
    int i = 0;
    for (; i + L::kCount <= n; i += L::kCount) L::store(out + i, f(L::load(in + i)...));
    if (i < n) L::store_first(out + i, f(L::load_first(in + i, n - i)...), n - i);
  }

  // Calls body(out as an array of the elements that it holds).
  template <class Body>
  static void with_elements(std::byte* out, DType dtype, Body&& body) {
    if (dtype == DType::kF32) return body(reinterpret_cast<float*>(out));
    body(reinterpret_cast<typename L::Bf16*>(out));
  }

  static void activate(Activation activation, const float* x, const float* bias, int n, std::byte* out, DType dtype) {
    with_elements(out, dtype, [&](auto* to) {
      with_activation(activation, [&](auto f) {
        if (bias == nullptr) return map(n, to, f, x);
        map(
            n, to, [f](V v, V b) { return f(L::add(v, b)); }, x, bias);
      });
    });
  }

  static void activate_gate(const Gate& rule, const float* gate, const float* up, int n, std::byte* out, DType dtype) {
    const bool plain = rule.limit == 0 && rule.offset == 0;
    const V most = L::splat(rule.limit > 0 ? rule.limit : __builtin_inff()), least = L::negate(most);
    const V offset = L::splat(rule.offset);
    with_elements(out, dtype, [&](auto* to) {
      with_activation(rule.activation, [&](auto f) {
        if (plain)
          return map(
              n, to, [f](V g, V u) { return L::mul(f(g), u); }, gate, up);
        const auto limited = [=](V g, V u) {
          return L::mul(f(L::min(most, g)), L::add(L::max(least, L::min(most, u)), offset));
        };
        map(n, to, limited, gate, up);
      });
    });
  }

  static void soft_cap(float cap, int n, float* inout) {
    const V most = L::splat(cap), inverse = L::splat(1 / cap);
    map(
        n, inout, [=](V x) { return L::mul(most, tanh(L::mul(x, inverse))); }, inout);
  }

  static void add_gated(float gate, const float* x, int n, float* inout) {
    const V weight = gated(L::splat(1), L::splat(gate));
    map(
        n, inout, [weight](V v, V sum) { return L::fma(weight, v, sum); }, x, inout);
  }

  static constexpr ActivationKernels kernels() { return {activate, activate_gate, soft_cap, add_gated}; }
};

}  // namespace
}  // namespace computron::kernels
