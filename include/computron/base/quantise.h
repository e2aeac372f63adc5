// Float32 weights as codes and scales (weight_type.h). A group of values shares a scale, in bfloat16:
//
//   int8, fp8   the largest magnitude ÷ 127 (fp8: ÷ 448), rounded up, so that no code is cut off
//   int4        the value of largest magnitude, with its sign, ÷ -8 or another of kInt4Divisors, rounded to nearest:
//               the first of those with the least sum of squared errors (codes × scale against values)
//
// and a value's code is the nearest to value ÷ scale, ties to even, held to what the type has: -127 to 127, -448 to 448
// (never NaN), -8 to 7. A group of zeros has scale and codes 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "computron/base/types.h"

namespace computron {

inline constexpr DType kQuantisedTo[] = {DType::kInt8, DType::kFp8, DType::kInt4};
// The squared error of the weights of inputs/trained is 0.892 of what 8 alone leaves, and 0.888 with 41 divisors
// from 5.5 to 9.5.
inline constexpr float kInt4Divisors[] = {8.0f, 7.75f, 7.25f, 7.0f, 8.25f, 8.5f, 8.75f, 9.0f};
inline constexpr std::size_t kLongestInt4Group = 512;

// The value of largest magnitude of some, as the bits of a float32 rotated left by one: as integers, peaks are in the
// order of magnitudes, of two equal ones the negative is larger, and NaN and infinities are above all numbers.
using Peak = std::uint32_t;
inline constexpr Peak kFirstPeakNotFinite = 0xff000000;

// peaks[i] = the larger of itself and that of values[i].
void raise_peaks(std::span<const float> values, Peak* peaks);
// Of a group with this peak, which must be finite, of int8 or fp8: bits of a bfloat16.
std::uint16_t scale_of(Peak peak, DType codes);
// Of a group of finite values, at most kLongestInt4Group. The same bits on every processor.
std::uint16_t int4_scale_of(std::span<const float> group);
// Codes of values that have a scale each. int4: an even number of them, two in a byte.
void encode(std::span<const float> values, const std::uint16_t* scales, DType codes, std::byte* out);
// Codes of a row and the scales of its groups, the last of which may be shorter. Returns the row's peak: if that is not
// finite, neither codes nor scales mean anything. int4: the groups are even.
Peak quantise_row(std::span<const float> values, std::size_t group, DType codes, std::byte* out, std::uint16_t* scales);

}  // namespace computron
