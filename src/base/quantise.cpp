#include "computron/base/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace computron {
namespace {

constexpr std::size_t kTile = 512;

// Added to a float32 of magnitude below 2^22, it leaves the nearest integer, ties to even, in the lowest bits.
constexpr float kRounder = 0x1.8p23f;

std::uint32_t bits_of_float(float x) { return std::bit_cast<std::uint32_t>(x); }

float held(float x, float least, float most) {
  x = x > most ? most : x;
  return x < least ? least : x;
}

struct Int8Code {
  static std::uint8_t of(float quotient) {
    return static_cast<std::uint8_t>(bits_of_float(held(quotient, -127.0f, 127.0f) + kRounder));
  }
};

struct Int4Code {
  static std::uint8_t of(float quotient) {
    return static_cast<std::uint8_t>(bits_of_float(held(quotient, -8.0f, 7.0f) + kRounder) & 15);
  }
};

// e4m3fn: bias 7, no infinities, 0x7e is 448. From 2^-6 on three bits of the mantissa are kept; below, codes are
// multiples of 2^-9.
struct Fp8Code {
  static std::uint8_t of(float quotient) {
    constexpr float kSmallestNormal = 0x1p-6f, kSubnormalRounder = 0x1p14f;
    constexpr std::uint32_t kBias = (127 - 7) << 3;
    const std::uint32_t sign = bits_of_float(quotient) >> 31 << 7;
    const float held_quotient = held(quotient, -448.0f, 448.0f);
    const std::uint32_t bits = bits_of_float(held_quotient) & 0x7fffffff;
    const std::uint32_t normal = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - kBias;
    const std::uint32_t subnormal =
        bits_of_float(std::bit_cast<float>(bits) + kSubnormalRounder) - std::bit_cast<std::uint32_t>(kSubnormalRounder);
    return static_cast<std::uint8_t>((bits < std::bit_cast<std::uint32_t>(kSmallestNormal) ? subnormal : normal) |
                                     sign);
  }
};

// What values are divided by: a scale of zero makes all of them zero. The sum makes -0 of a quotient 0.
float divisor_of(std::uint16_t scale) {
  const float divisor = std::bit_cast<float>(static_cast<std::uint32_t>(scale) << 16);
  return divisor == 0.0f ? std::numeric_limits<float>::infinity() : divisor;
}

template <class Code>
void encode_each(const float* values, const float* divisors, std::size_t n, std::uint8_t* __restrict out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = Code::of(values[i] / divisors[i] + 0.0f);
}

template <class Code>
void encode_group(const float* values, float divisor, std::size_t n, std::uint8_t* __restrict out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = Code::of(values[i] / divisor + 0.0f);
}

void pack_halves(const std::uint8_t* codes, std::size_t n, std::uint8_t* __restrict out) {
  for (std::size_t i = 0; i < n / 2; ++i) out[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

Peak peak_of(const float* values, std::size_t n) {
  Peak peak = 0;
  for (std::size_t i = 0; i < n; ++i) peak = std::max(peak, std::rotl(bits_of_float(values[i]), 1));
  return peak;
}

// As bf16_from_f32 of a number; a NaN may become another or infinity. In vectors: with a call for each divisor int4
// takes a quarter longer.
std::uint32_t bf16_bits_of_number(float x) {
  const std::uint32_t bits = bits_of_float(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// A lane for each divisor of a group's peak.
constexpr std::size_t kDivisors = std::size(kInt4Divisors);
using Lanes [[gnu::vector_size(sizeof(float) * kDivisors)]] = float;
using IntLanes [[gnu::vector_size(sizeof(float) * kDivisors)]] = std::int32_t;

// The sums of squared errors of values ÷ peak, of which a scale is 1 ÷ ratio. In the order of the values, so that they
// have the same bits whatever vectors there are.
Lanes squared_errors(const float* shares, std::size_t n, Lanes ratios) {
  const IntLanes least = IntLanes{} + std::bit_cast<std::int32_t>(kRounder - 8.0f), most = least + 15;
  Lanes sums = {};
  for (std::size_t i = 0; i < n; ++i) {
    const Lanes quotients = shares[i] * ratios;
    auto rounded = std::bit_cast<IntLanes>(quotients + kRounder);
    rounded = rounded < most ? rounded : most;
    rounded = rounded > least ? rounded : least;
    const Lanes errors = quotients - (std::bit_cast<Lanes>(rounded) - kRounder);
    sums += errors * errors;
  }
  return sums / (ratios * ratios);
}

// A scale that rounds to zero is taken if all do: its errors are NaN.
std::uint16_t int4_scale(const float* values, std::size_t n, Peak peak) {
  const auto largest = std::bit_cast<float>(std::rotr(peak, 1));
  float shares[kLongestInt4Group];
  for (std::size_t i = 0; i < n; ++i) shares[i] = values[i] / largest;
  std::uint32_t scales[kDivisors];
  float ratios[kDivisors];
  for (std::size_t d = 0; d < kDivisors; ++d) {
    scales[d] = bf16_bits_of_number(largest / -kInt4Divisors[d]);
    ratios[d] = largest / std::bit_cast<float>(scales[d] << 16);
  }
  const auto errors =
      std::bit_cast<std::array<float, kDivisors>>(squared_errors(shares, n, std::bit_cast<Lanes>(ratios)));
  std::uint32_t best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (std::size_t d = 0; d < kDivisors; ++d) {
    const bool better = errors[d] < least;
    best = better ? scales[d] : best;
    least = better ? errors[d] : least;
  }
  return static_cast<std::uint16_t>(best);
}

std::uint16_t scale_of_group(const float* values, std::size_t n, Peak peak, DType codes) {
  return codes == DType::kInt4 ? int4_scale(values, n, peak) : scale_of(peak, codes);
}

// Codes of a tile, and the scales and the peak of its groups.
template <class Code>
Peak quantise_groups(const float* values, std::size_t n, std::size_t group, DType codes, std::uint8_t* out,
                     std::uint16_t* scales) {
  Peak peak = 0;
  for (std::size_t at = 0; at < n; at += group) {
    const std::size_t count = std::min(group, n - at);
    const Peak of_group = peak_of(values + at, count);
    const std::uint16_t scale = scale_of_group(values + at, count, of_group, codes);
    encode_group<Code>(values + at, divisor_of(scale), count, out + at);
    *scales++ = scale;
    peak = std::max(peak, of_group);
  }
  return peak;
}

Peak quantise_int4(std::span<const float> values, std::size_t group, std::uint8_t* out, std::uint16_t* scales) {
  static_assert(kTile >= kLongestInt4Group);
  std::uint8_t halves[kTile];
  Peak peak = 0;
  ensure(group <= kLongestInt4Group, "a group of int4 that is too long");
  const std::size_t tile = kTile / group * group;
  for (std::size_t at = 0; at < values.size(); at += tile) {
    const std::size_t count = std::min(tile, values.size() - at);
    const Peak of_tile =
        quantise_groups<Int4Code>(values.data() + at, count, group, DType::kInt4, halves, scales + at / group);
    pack_halves(halves, count, out + at / 2);
    peak = std::max(peak, of_tile);
  }
  return peak;
}

}  // namespace

void raise_peaks(std::span<const float> values, Peak* peaks) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    peaks[i] = std::max(peaks[i], std::rotl(bits_of_float(values[i]), 1));
  }
}

std::uint16_t scale_of(Peak peak, DType codes) {
  ensure(codes == DType::kInt8 || codes == DType::kFp8, "codes whose scale is not that of the peak");
  const float magnitude = std::bit_cast<float>(peak >> 1);
  const float scale = magnitude / (codes == DType::kFp8 ? 448.0f : 127.0f);
  return static_cast<std::uint16_t>((bits_of_float(scale) + 0xffff) >> 16);
}

std::uint16_t int4_scale_of(std::span<const float> group) {
  ensure(group.size() <= kLongestInt4Group, "a group of int4 that is too long");
  return int4_scale(group.data(), group.size(), peak_of(group.data(), group.size()));
}

void encode(std::span<const float> values, const std::uint16_t* scales, DType codes, std::byte* out) {
  float divisors[kTile];
  std::uint8_t halves[kTile];
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  for (std::size_t at = 0; at < values.size(); at += kTile) {
    const std::size_t n = std::min(kTile, values.size() - at);
    for (std::size_t i = 0; i < n; ++i) divisors[i] = divisor_of(scales[at + i]);
    const float* from = values.data() + at;
    if (codes == DType::kInt8) encode_each<Int8Code>(from, divisors, n, bytes + at);
    if (codes == DType::kFp8) encode_each<Fp8Code>(from, divisors, n, bytes + at);
    if (codes != DType::kInt4) continue;
    encode_each<Int4Code>(from, divisors, n, halves);
    pack_halves(halves, n, bytes + at / 2);
  }
}

Peak quantise_row(std::span<const float> values, std::size_t group, DType codes, std::byte* out,
                  std::uint16_t* scales) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  if (codes == DType::kInt4) return quantise_int4(values, group, bytes, scales);
  if (codes == DType::kFp8) {
    return quantise_groups<Fp8Code>(values.data(), values.size(), group, codes, bytes, scales);
  }
  return quantise_groups<Int8Code>(values.data(), values.size(), group, codes, bytes, scales);
}

}  // namespace computron
