// The template behind activation_avx2 and activation_avx512 (activation_kernels.h). Everything is local to the
// including file: code compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/exp2.h"

namespace computron::kernels {
namespace {

// L: V, kCount; load, load_first, store, store_first of float and Bf16; splat, add, sub, mul, div, fma, max, min, exp,
// nearest_integer, times_exp2; negate, magnitude, with_sign, by_sign.
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

  // log2(erfc(a / sqrt 2)) + a² log2(e) / 2 for a from 0 to kErfcEnd: a polynomial in a - 1.5, fitted so that erfc is
  // wrong by less than 1e-7 of itself below a = 3 and 3e-7 above. With rounding, that of the exponent above all, erfc
  // is wrong by at most 2e-7, and of itself by 3e-7 below a = 1.4, 1e-6 below 4.2 and 4e-6 below 8.3; beyond, it is
  // less than 1e-16.
  static constexpr float kErfcEnd = 8.4f;
  static V scaled_log2_erfc(V a) {
    const V u = L::sub(L::min(a, L::splat(kErfcEnd)), L::splat(1.5f));
    V p = L::splat(-7.5668936e-11f);
    for (const float c : {2.808093e-9f, -4.453419e-8f, 3.8739424e-7f, -1.8641219e-6f, 2.2799018e-6f, 4.314314e-5f,
                          -4.8197087e-4f, 3.409437e-3f, -1.9994553e-2f, 1.0787388e-1f, -6.3287705e-1f, -1.2808205f}) {
      p = L::fma(p, u, L::splat(c));
    }
    return p;
  }

  // x (1 + erf(x / sqrt 2)) / 2, and 1 + erf(z) = erfc(-z). No division: one takes as long as the polynomial.
  static V gelu_erf(V x) {
    const V a = L::magnitude(x);
    const V tail = exp2<L>(L::fma(L::mul(a, L::splat(-0.5f * kLog2E)), a, scaled_log2_erfc(a)));
    const V twice = L::by_sign(x, tail, L::sub(L::splat(2), tail));
    return L::mul(L::mul(x, L::splat(0.5f)), twice);
  }

  // (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x.
  static V tanh(V x) {
    const V e = exp2<L>(L::mul(L::magnitude(x), L::splat(-2 * kLog2E)));
    return L::with_sign(L::div(L::sub(L::splat(1), e), L::add(L::splat(1), e)), x);
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

  static void activate(Activation activation, const ActivationTile& tile) {
    with_elements(tile.out, tile.dtype, [&](auto* first) {
      using Out = std::remove_pointer_t<decltype(first)>;
      with_activation(activation, [&](auto f) {
        for (int r = 0; r < tile.rows; ++r) {
          const float* x = tile.x + r * tile.x_stride;
          Out* out = reinterpret_cast<Out*>(tile.out + r * tile.out_stride);
          if (tile.bias == nullptr) {
            map(tile.columns, out, f, x);
          } else {
            map(
                tile.columns, out, [f](V v, V b) { return f(L::add(v, b)); }, x, tile.bias);
          }
        }
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
