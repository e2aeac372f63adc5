#include "computron/base/types.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "computron/base/vectors.h"

namespace computron {

DType parse_dtype(std::string_view text) {
  for (const DType t : kPlainDTypes) {
    if (text == name_of(t)) return t;
  }
  throw Error(ExitCode::kUsage, fmt::format("unknown dtype '{}' (known: f32, f16, bf16)", text));
}

std::size_t checked_mul(std::size_t a, std::size_t b, std::string_view what) {
  std::size_t product;
  if (__builtin_mul_overflow(a, b, &product)) throw Error(ExitCode::kData, fmt::format("{}: size overflows", what));
  return product;
}

std::size_t checked_add(std::size_t a, std::size_t b, std::string_view what) {
  std::size_t sum;
  if (__builtin_add_overflow(a, b, &sum)) throw Error(ExitCode::kData, fmt::format("{}: size overflows", what));
  return sum;
}

std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float f32_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

float f32_from_f16(std::uint16_t bits) { return static_cast<float>(std::bit_cast<Half>(bits)); }

std::uint16_t f16_from_f32(float value) {
  constexpr float kLargest = 65504.0f;
  if (std::isfinite(value)) value = std::fmin(std::fmax(value, -kLargest), kLargest);
  return std::bit_cast<std::uint16_t>(static_cast<Half>(value));
}

}  // namespace computron
