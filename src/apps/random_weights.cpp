#include "src/apps/random_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "computron/base/digest.h"
#include "computron/base/vectors.h"

namespace computron {
namespace {

constexpr std::size_t kPairs = RandomTensor::kTile / 2;
constexpr float kUnit24 = 0x1p-24f;

// -ln(x) for x = (n + 1) / 2^24, n of 24 bits. The polynomial is that of Cephes logf on [sqrt(1/2), sqrt(2)); no libm,
// so that the bits are the same everywhere.
float minus_log(std::uint32_t n) {
  constexpr std::uint32_t kSqrtHalf = 0x3f3504f3;
  const float x = static_cast<float>(static_cast<std::int32_t>(n) + 1) * kUnit24;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) - kSqrtHalf;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = std::bit_cast<float>((bits & 0x7fffff) + kSqrtHalf) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float square = f * f;
  const float log = f + (f * square * p - 0.5f * square) + exponent * 0.693147180559945f;
  return log < 0 ? -log : 0.0f;
}

// Cephes sinf and cosf on [-pi/4, pi/4].
float small_sin(float a) {
  const float square = a * a;
  return a + a * square * (-1.6666654611e-1f + square * (8.3321608736e-3f - square * 1.9515295891e-4f));
}
float small_cos(float a) {
  const float square = a * a;
  return 1.0f - 0.5f * square +
         square * square * (4.166664568298827e-2f + square * (-1.388731625493765e-3f + square * 2.443315711809948e-5f));
}

// `value` with the sign inverted if bit 31 of `bits` is set.
float with_sign(float value, std::uint32_t bits) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (bits & 0x80000000u));
}

std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
  return digest64(std::as_bytes(std::span(name.data(), name.size())), mix64(seed));
}

// f16_from_f32 and bf16_from_f32 of base/types.h for what is never NaN, in loops that become vectors.
void narrow_f16(std::span<const float> values, std::uint16_t* out) {
  constexpr float kLargest = 65504.0f;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = std::min(std::max(values[i], -kLargest), kLargest);
    out[i] = std::bit_cast<std::uint16_t>(static_cast<Half>(value));
  }
}

void narrow_bf16(std::span<const float> values, std::uint16_t* out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    out[i] = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

void store(std::span<const float> values, DType dtype, std::byte* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  std::uint16_t halves[RandomTensor::kTile];
  dtype == DType::kF16 ? narrow_f16(values, halves) : narrow_bf16(values, halves);
  std::memcpy(out, halves, values.size() * sizeof *halves);
}

}  // namespace

RandomTensor::RandomTensor(std::uint64_t seed, std::string_view name, WeightDistribution distribution)
    : key_(key_of(seed, name)), distribution_(distribution) {}

// Box-Muller: pair i of the tile is elements i and kPairs + i. With a uniform in the first quadrant, written as
// a + pi/4, cos and sin of it are (cos a -+ sin a) / sqrt(2), and the sqrt(2) cancels that of the radius
// sqrt(-2 ln x); two more bits choose the quadrant. The plain loops are what the compiler turns into vectors.
void RandomTensor::make_tile(std::size_t tile, float* out) const {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;  // splitmix64's step
  std::uint32_t high[kPairs], low[kPairs];
  for (std::size_t i = 0; i < kPairs; ++i) {
    const std::uint64_t bits = mix64(key_ + (tile * kPairs + i) * kGolden);
    high[i] = static_cast<std::uint32_t>(bits >> 32);
    low[i] = static_cast<std::uint32_t>(bits);
  }
  const auto [mean, deviation] = distribution_;
  for (std::size_t i = 0; i < kPairs; ++i) {
    constexpr float kHalfPi = 1.57079632679489662f;
    const float radius = deviation * std::sqrt(minus_log(high[i] >> 8));
    const float a = (static_cast<float>(static_cast<std::int32_t>(low[i] >> 8)) * kUnit24 - 0.5f) * kHalfPi;
    const float c = small_cos(a), s = small_sin(a);
    out[i] = mean + with_sign(radius * (c - s), low[i] << 31);
    out[kPairs + i] = mean + with_sign(radius * (c + s), low[i] << 30);
  }
}

void RandomTensor::fill(std::size_t first, DType dtype, std::span<std::byte> out) const {
  ensure(first % kTile == 0, "random tensors are made in whole tiles");
  const std::size_t size = size_of(dtype);
  const std::size_t count = out.size() / size;
  float values[kTile];
  for (std::size_t done = 0; done < count; done += kTile) {
    make_tile((first + done) / kTile, values);
    store(std::span(values, std::min(kTile, count - done)), dtype, out.data() + done * size);
  }
}

}  // namespace computron
