// Activation functions in float32.
#pragma once

#include <cmath>

#include "computron/base/host_device.h"
#include "computron/kernels/types.h"

namespace computron::kernels::cuda {

// x / (1 + e^-t): x times the logistic function of t. Keeps its relative precision in the negative tail.
COMPUTRON_HOST_DEVICE inline float gated(float x, float t) { return x / (1.0f + expf(-t)); }

// (1 + tanh u) / 2 = 1 / (1 + e^-2u).
COMPUTRON_HOST_DEVICE inline float gelu_tanh(float x) {
  return gated(x, 1.5957691f * x * (1.0f + 0.044715f * x * x));  // 2 sqrt(2 / pi)
}

// (1 + erf z) / 2 = erfc(-z) / 2.
COMPUTRON_HOST_DEVICE inline float gelu_erf(float x) { return 0.5f * x * erfcf(-0.70710678f * x); }

COMPUTRON_HOST_DEVICE inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0 ? 0.0f : x;  // NaN stays
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kGeluErf:
      return gelu_erf(x);
    case Activation::kSilu:
      return gated(x, x);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kQuickGelu:
      return gated(x, 1.702f * x);
  }
  return x;
}

// NaN stays.
COMPUTRON_HOST_DEVICE inline float activate_gate(const Gate& rule, float gate, float up) {
  if (rule.limit > 0) {
    gate = gate > rule.limit ? rule.limit : gate;
    up = up > rule.limit ? rule.limit : up < -rule.limit ? -rule.limit : up;
  }
  return activate(rule.activation, gate) * (up + rule.offset);
}

}  // namespace computron::kernels::cuda
