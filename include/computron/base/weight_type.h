// How a GEMM weight [out, in] is held: its values as they are, or quantised: a code for each value and a scale for each
// group of values that follow each other along `in`.
//
// A quantised value is code × scale, as a float32, rounded once more to `values`: the same number for every kernel,
// device and batch, and what torch computes of the same codes.
#pragma once

#include <string>

#include "computron/base/types.h"

namespace computron {

struct WeightType {
  // Groups are multiples of it, so that kernels read scales rarely.
  static constexpr int kSmallestGroup = 16;

  DType values = DType::kF32;  // what is multiplied: a plain type
  DType codes = DType::kF32;   // plain: the same
  DType scales = DType::kF32;  // f32, f16, bf16 or e8m0; plain: f32
  int group = 0;               // values that share a scale, ≥ kSmallestGroup; kWholeRow: all of a row; plain: 0

  static constexpr int kWholeRow = 1 << 30;

  constexpr WeightType() = default;
  constexpr WeightType(DType plain) : values(plain), codes(plain) {}  // NOLINT: every plain type is a weight's type
  constexpr WeightType(DType v, DType c, DType s, int g) : values(v), codes(c), scales(s), group(g) {}

  bool operator==(const WeightType&) const = default;
  constexpr bool quantised() const { return group > 0; }
  // Scales of a row of `in` values; plain: none.
  constexpr int groups(int in) const { return !quantised() ? 0 : group >= in ? 1 : ceil_div(in, group); }
  // Of [out, in], without padding.
  constexpr double bytes(int out, int in) const {
    const double bits = static_cast<double>(in) * bits_of(codes) + static_cast<double>(groups(in)) * bits_of(scales);
    return out * bits / 8;
  }
};

// "bf16", "int8 in groups of 32", "fp8 by row".
std::string name_of(const WeightType& type);

}  // namespace computron
