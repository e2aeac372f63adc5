// Names and small arithmetic shared by every floor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "computron/base/error.h"

namespace computron {

// What an array holds: plain values, codes of quantised weights (weight_type.h), or, e8m0, powers of two that scale
// these. Quantised: int8 and int4 are two's complement, fp8 is e4m3fn; two int4 lie in a byte, the first in its low
// half.
enum class DType : std::uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kInt8 = 3, kFp8 = 4, kInt4 = 5, kE8M0 = 6 };

inline constexpr DType kPlainDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
inline constexpr DType kCodeDTypes[] = {DType::kInt8, DType::kFp8, DType::kInt4};
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16,  DType::kBF16, DType::kInt8,
                                       DType::kFp8, DType::kInt4, DType::kE8M0};

constexpr bool is_plain(DType t) { return t <= DType::kBF16; }
constexpr bool is_code(DType t) { return t == DType::kInt8 || t == DType::kFp8 || t == DType::kInt4; }
constexpr std::size_t bits_of(DType t) { return t == DType::kF32 ? 32 : is_plain(t) ? 16 : t == DType::kInt4 ? 4 : 8; }
// Bytes of an element. There are none of half a byte: bytes_of() counts any type's.
constexpr std::size_t size_of(DType t) { return bits_of(t) / 8; }
// Bytes of so many elements that lie side by side; int4: an even number.
constexpr std::size_t bytes_of(DType t, std::size_t elements) { return elements * bits_of(t) / 8; }
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "int8", "fp8", "int4", "e8m0"};
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
