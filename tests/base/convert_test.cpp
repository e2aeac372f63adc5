// Conversions of element types: every half, every edge of rounding, against the scalar functions of base/types.h.
#include "computron/base/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace computron::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestBf16 = 0x1.fep127f;

template <class To, class From>
std::vector<To> converted(const std::vector<From>& in, DType from, DType to) {
  std::vector<To> out(in.size());
  convert_elements(reinterpret_cast<const std::byte*>(in.data()), from, reinterpret_cast<std::byte*>(out.data()), to,
                   in.size());
  return out;
}

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

float widened(std::uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

// What narrowing must give, from the scalar functions: base's for bfloat16 does not saturate.
std::uint16_t narrowed(float value, DType dtype) {
  if (dtype == DType::kF16) return f16_from_f32(value);
  if (std::isfinite(value)) value = std::fmin(std::fmax(value, -kLargestBf16), kLargestBf16);
  return bf16_from_f32(value);
}

void expect_narrowed(const std::vector<float>& values, DType dtype) {
  const auto halves = converted<std::uint16_t>(values, DType::kF32, dtype);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool right =
        std::isnan(values[i]) ? std::isnan(widened(halves[i], dtype)) : halves[i] == narrowed(values[i], dtype);
    if (!right && ++wrong <= 5) {
      ADD_FAILURE() << name_of(dtype) << " of " << values[i] << " is 0x" << std::hex << halves[i] << ", expected 0x"
                    << narrowed(values[i], dtype);
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(Convert, WidensEveryHalfExactly) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto halves = all_halves();
    const auto floats = converted<float>(halves, dtype, DType::kF32);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float expected = widened(halves[i], dtype);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(floats[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), std::bit_cast<std::uint32_t>(expected)) << i;
      }
    }
  }
}

TEST(Convert, NarrowingAfterWideningIsTheIdentity) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const auto halves = all_halves();
    const auto back = converted<std::uint16_t>(converted<float>(halves, dtype, DType::kF32), DType::kF32, dtype);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      if (std::isnan(widened(halves[i], dtype))) continue;
      ASSERT_EQ(back[i], halves[i]);
    }
  }
}

// Around every half and every middle between two: the float there, and the next ones on both sides.
TEST(Convert, RoundsToNearestEvenAtEveryMiddle) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> values;
    for (const std::uint16_t half : all_halves()) {
      const float here = widened(half, dtype), next = widened(static_cast<std::uint16_t>(half + 1), dtype);
      for (const float centre : {here, here + (next - here) / 2}) {
        for (const float value : {centre, std::nextafter(centre, kInfinity), std::nextafter(centre, -kInfinity)}) {
          values.push_back(value);
        }
      }
    }
    expect_narrowed(values, dtype);
  }
}

TEST(Convert, SaturatesButKeepsInfinitiesAndNan) {
  const float largest = std::numeric_limits<float>::max(), nan = std::nanf("");
  const std::vector<float> values = {65504,
                                     65519,
                                     65520,
                                     65536,
                                     1e30f,
                                     largest,
                                     -largest,
                                     -65520,
                                     0x1.fefffep127f,
                                     0x1.ffp127f,
                                     kInfinity,
                                     -kInfinity,
                                     nan,
                                     -nan,
                                     std::bit_cast<float>(0x7f800001u),
                                     std::bit_cast<float>(0xffbfffffu),
                                     -0.0f,
                                     1e-45f,
                                     -1e-45f};
  expect_narrowed(values, DType::kF16);
  expect_narrowed(values, DType::kBF16);
  const auto f16 = converted<std::uint16_t>(values, DType::kF32, DType::kF16);
  const auto bf16 = converted<std::uint16_t>(values, DType::kF32, DType::kBF16);
  EXPECT_EQ(f16[4], 0x7bff);
  EXPECT_EQ(f16[10], 0x7c00);
  EXPECT_EQ(bf16[5], 0x7f7f);
  EXPECT_EQ(bf16[6], 0xff7f);
  EXPECT_EQ(bf16[10], 0x7f80);
}

// Through float32, which holds both exactly: one rounding.
TEST(Convert, BetweenTheHalves) {
  const std::pair<DType, DType> both[] = {{DType::kF16, DType::kBF16}, {DType::kBF16, DType::kF16}};
  for (const auto& [from, to] : both) {
    const auto halves = all_halves();
    const auto out = converted<std::uint16_t>(halves, from, to);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float value = widened(halves[i], from);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(widened(out[i], to))) << i;
      } else {
        ASSERT_EQ(out[i], narrowed(value, to)) << value;
      }
    }
  }
}

TEST(Convert, ExactlyAsManyElements) {
  for (std::size_t n = 0; n <= 20; ++n) {
    const std::vector<float> in(n, 1.5f);
    std::vector<std::uint16_t> out(n + 1, 0xeeee);
    convert_elements(reinterpret_cast<const std::byte*>(in.data()), DType::kF32,
                     reinterpret_cast<std::byte*>(out.data()), DType::kF16, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], 0x3e00) << n;
    EXPECT_EQ(out[n], 0xeeee) << n;
  }
}

TEST(CountNotFinite, CountsNanAndInfinitiesOfEveryType) {
  const float inf = HUGE_VALF;
  const std::vector<float> values = {1, -inf, 0, NAN, 3e38f, -0.0f, inf, 1e-40f, -NAN, 65504, 5};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> bytes(values.size() * size_of(type) + 1);  // + 1: not aligned
    convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data() + 1, type,
                     values.size());
    EXPECT_EQ(count_not_finite(bytes.data() + 1, type, values.size()), 4u) << name_of(type);
    EXPECT_EQ(count_not_finite(bytes.data() + 1, type, 2), 1u);
    EXPECT_EQ(count_not_finite(bytes.data() + 1, type, 0), 0u);
  }
}

TEST(CountNotFinite, CountsCodesThatAreNoNumbers) {
  const std::vector<std::uint8_t> codes = {0x7f, 0xff, 0x7e, 0x80, 0, 0xfe};
  const auto* bytes = reinterpret_cast<const std::byte*>(codes.data());
  EXPECT_EQ(count_not_finite(bytes, DType::kFp8, 6), 2u);
  EXPECT_EQ(count_not_finite(bytes, DType::kE8M0, 6), 1u);
  EXPECT_EQ(count_not_finite(bytes, DType::kInt8, 6), 0u);
  EXPECT_EQ(count_not_finite(bytes, DType::kInt4, 12), 0u);
  EXPECT_EQ(count_not_finite(bytes, DType::kFp4, 12), 0u);
  EXPECT_EQ(count_not_finite(bytes, DType::kE4M3, 6), 2u);
}

TEST(CountNegative, CountsWhatIsBelowZero) {
  const std::vector<float> values = {1, -1, 0, -0.0f, -HUGE_VALF, 3e38f, -6e-8f};
  for (const DType type : kPlainDTypes) {
    std::vector<std::byte> bytes(values.size() * size_of(type) + 1);  // + 1: not aligned
    convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, bytes.data() + 1, type,
                     values.size());
    EXPECT_EQ(count_negative(bytes.data() + 1, type, values.size()), 3u) << name_of(type);
  }
}

TEST(CountNegative, OfScalesOfAByte) {
  const std::vector<std::uint8_t> scales = {0, 1, 0x7e, 0x80, 0x81, 0xfe};
  const auto* bytes = reinterpret_cast<const std::byte*>(scales.data());
  EXPECT_EQ(count_negative(bytes, DType::kE4M3, 6), 2u);
  EXPECT_EQ(count_negative(bytes, DType::kE8M0, 6), 0u);
}

TEST(Convert, TheSameTypeIsCopied) {
  const std::vector<std::uint16_t> bits = {0x7c01, 0xfe00, 0x0001};  // a signalling NaN too
  EXPECT_EQ(converted<std::uint16_t>(bits, DType::kF16, DType::kF16), bits);
}

}  // namespace
}  // namespace computron::test
