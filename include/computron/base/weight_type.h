// How a GEMM weight [out, in] is held: its values as they are, or quantised: a code for each value and a scale for each
// group of values that follow each other along `in`.
//
// A quantised value is code × scale, as a float32, rounded once more to `values`: the same number for every kernel,
// device and batch, and what torch computes of the same codes. A kernel that multiplies codes as integers has the scale
// meet their sum instead (kernels/cpu/gemm_integers.h). Scales of e4m3 have two levels (NVFP4): each tensor has
// a factor, and scale is e4m3 × factor, rounded to float32 before it meets a code. The factor is a double: modelopt's
// weight_scale_2 as it is, and 1 ÷ compressed-tensors' weight_global_scale, which divides. A quotient of e4m3's four
// bits by a float32's 24 lies at least 2^-49 of itself from where float32 rounds up instead of down, and the product of
// doubles within 2^-52 of it: both round alike (but for quotients that are subnormal, which models do not have).
#pragma once

#include <string>

#include "computron/base/types.h"

namespace computron {

struct WeightType {
  // Groups are multiples of it, so that kernels read scales rarely.
  static constexpr int kSmallestGroup = 16;

  DType values = DType::kF32;  // what is multiplied: a plain type
  DType codes = DType::kF32;   // plain: the same
  DType scales = DType::kF32;  // one of kScaleDTypes; plain: f32
  int group = 0;               // values that share a scale, ≥ kSmallestGroup; kWholeRow: all of a row; plain: 0

  static constexpr int kWholeRow = 1 << 30;

  constexpr WeightType() = default;
  constexpr WeightType(DType plain) : values(plain), codes(plain) {}  // NOLINT: every plain type is a weight's type
  constexpr WeightType(DType v, DType c, DType s, int g) : values(v), codes(c), scales(s), group(g) {}

  bool operator==(const WeightType&) const = default;
  constexpr bool quantised() const { return group > 0; }
  // Scales have two levels; rows keep the factor of the tensor that they come from.
  constexpr bool has_factors() const { return quantised() && scales == DType::kE4M3; }
  constexpr std::size_t factor_bytes() const { return has_factors() ? sizeof(double) : 0; }
  // Scales of a row of `in` values; plain: none.
  constexpr int groups(int in) const { return !quantised() ? 0 : group >= in ? 1 : ceil_div(in, group); }
  // Of [out, in], without padding.
  constexpr double bytes(int out, int in) const {
    const double bits = static_cast<double>(in) * bits_of(codes) + static_cast<double>(groups(in)) * bits_of(scales);
    return out * (bits / 8 + static_cast<double>(factor_bytes()));
  }
};

// Whether a factor makes scales of all that e4m3 holds, up to 448: neither negative ones nor any that float32 cannot
// hold.
bool usable_factor(double factor);

// "bf16", "int8 in groups of 32", "fp8 by row".
std::string name_of(const WeightType& type);

}  // namespace computron
