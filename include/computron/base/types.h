// Names and small arithmetic shared by every floor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "computron/base/error.h"

namespace computron {

// What an array holds: plain values, codes of quantised weights (weight_type.h), or scales of these: e8m0, powers of
// two, and e4m3, which is fp8 as a scale. Quantised: int8 and int4 are two's complement, fp8 is e4m3fn, fp4 is e2m1
// (0, 0.5, 1, 1.5, 2, 3, 4, 6 and, with the highest bit, their negatives); of int4 and fp4 two lie in a byte, the first
// in its low half.
enum class DType : std::uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kInt8 = 3,
  kFp8 = 4,
  kInt4 = 5,
  kE8M0 = 6,
  kFp4 = 7,
  kE4M3 = 8
};

inline constexpr DType kPlainDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr DType kCodeDTypes[] = {DType::kInt8, DType::kFp8, DType::kInt4, DType::kFp4};
inline constexpr DType kScaleDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kE8M0, DType::kE4M3};
inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kInt8, DType::kFp8,
                                       DType::kInt4, DType::kE8M0, DType::kFp4,  DType::kE4M3};

constexpr bool is_plain(DType t) { return t <= DType::kBF16; }
constexpr bool is_scale(DType t) { return is_plain(t) || t == DType::kE8M0 || t == DType::kE4M3; }
constexpr bool is_code(DType t) { return t <= DType::kE4M3 && !is_scale(t); }
constexpr bool two_in_a_byte(DType t) { return t == DType::kInt4 || t == DType::kFp4; }
constexpr std::size_t bits_of(DType t) { return t == DType::kF32 ? 32 : is_plain(t) ? 16 : two_in_a_byte(t) ? 4 : 8; }
// Bytes of an element. There are none of half a byte: bytes_of() counts any type's.
constexpr std::size_t size_of(DType t) { return bits_of(t) / 8; }
// Bytes of so many elements that lie side by side; of those that lie two in a byte an even number.
constexpr std::size_t bytes_of(DType t, std::size_t elements) { return elements * bits_of(t) / 8; }
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "int8", "fp8", "int4", "e8m0", "fp4", "e4m3"};
  return kNames[static_cast<std::size_t>(t)];
}
// "f32", "f16" or "bf16"; throws Error{kUsage} naming `text` otherwise.
DType parse_dtype(std::string_view text);

// Index of a model in the job's model list, of a page in a (model, stage) layout, of a frame in a pool, of a job's
// step, of a sequence from its admission until it is closed. The same on every rank.
using ModelId = std::uint32_t;
using PageId = std::uint32_t;
using FrameId = std::uint32_t;
using StepId = std::uint64_t;
using SequenceId = std::uint32_t;
using TokenId = std::int32_t;
// A request: the 0-based number of its line in the input.
using RequestId = std::uint64_t;

inline constexpr FrameId kNoFrame = std::numeric_limits<FrameId>::max();

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

// a × b and a + b of sizes that come from outside; throw Error{kData} naming `what` when they overflow.
std::size_t checked_mul(std::size_t a, std::size_t b, std::string_view what);
std::size_t checked_add(std::size_t a, std::size_t b, std::string_view what);

// bfloat16 is the upper half of a float32. Rounds to nearest even; NaN stays NaN.
std::uint16_t bf16_from_f32(float value);
float f32_from_bf16(std::uint16_t bits);
// IEEE binary16, exact widening and round-to-nearest-even narrowing that saturates to the largest finite value
// unless the input is infinite.
float f32_from_f16(std::uint16_t bits);
std::uint16_t f16_from_f32(float value);

}  // namespace computron
