// Codes and scales against a plain double loop over all codes.
#include "computron/base/quantise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace computron::test {
namespace {

// What a code stands for; NaN for e4m3fn's two.
double value_of(DType type, int code) {
  if (type == DType::kInt8) return static_cast<std::int8_t>(code);
  if (type == DType::kInt4) return code < 8 ? code : code - 16;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? size : -size;
}

// Whether this program writes the code: -128 is none of ours.
bool is_written(DType type, int code) {
  if (type == DType::kInt8) return code != 128;
  return !std::isnan(value_of(type, code));
}

int codes_of(DType type) { return type == DType::kInt4 ? 16 : 256; }

// The codes nearest to a quotient: two where it lies in the middle of them, and there the even one is right.
double nearest(DType type, double quotient) {
  double best = INFINITY;
  bool best_is_even = false;
  for (int code = 0; code < codes_of(type); ++code) {
    if (!is_written(type, code)) continue;
    const double value = value_of(type, code);
    const double gain = std::fabs(best - quotient) - std::fabs(value - quotient);
    if (gain > 0 || (gain == 0 && !best_is_even)) {
      best = value;
      best_is_even = code % 2 == 0;
    }
  }
  return best;
}

double largest_of(std::span<const float> group) {
  double largest = 0;
  for (const float value : group) {
    if (std::fabs(value) > std::fabs(largest) || value == -std::fabs(largest)) largest = value;
  }
  return largest;
}

// Of all values, with the nearest codes.
double squared_error(DType type, std::span<const float> group, double scale) {
  double sum = 0;
  for (const float value : group) sum += std::pow(nearest(type, value / scale) * scale - value, 2);
  return sum;
}

// Of a divisor of the largest value, or 0 where that has none.
double int4_scale(std::span<const float> group, float divisor) {
  return f32_from_bf16(bf16_from_f32(static_cast<float>(largest_of(group)) / -divisor));
}

// One of the divisors' scales, and no other's errors are smaller by more than a float32 sees.
void expect_int4_scale(std::span<const float> group, double scale) {
  bool is_one = false;
  double least = INFINITY;
  for (const float divisor : kInt4Divisors) {
    const double other = int4_scale(group, divisor);
    if (other == 0) continue;
    is_one = is_one || other == scale;
    least = std::min(least, squared_error(DType::kInt4, group, other));
  }
  if (least == INFINITY) {
    EXPECT_EQ(scale, 0);
    return;
  }
  EXPECT_TRUE(is_one) << scale;
  EXPECT_LE(squared_error(DType::kInt4, group, scale), least * (1 + 1e-5));
}

void expect_scale(DType type, std::span<const float> group, double scale) {
  if (type == DType::kInt4) return expect_int4_scale(group, scale);
  const auto exact = static_cast<float>(std::fabs(largest_of(group))) / (type == DType::kFp8 ? 448.0f : 127.0f);
  std::uint16_t bits = bf16_from_f32(exact);
  if (f32_from_bf16(bits) < exact) ++bits;
  EXPECT_EQ(scale, f32_from_bf16(bits));
}

int code_at(DType type, const std::vector<std::byte>& codes, std::size_t i) {
  if (type != DType::kInt4) return std::to_integer<int>(codes[i]);
  return std::to_integer<int>(codes[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 15;
}

// The codes of a group against the loop.
void expect_codes(DType type, std::span<const float> values, const std::vector<std::byte>& codes, std::size_t first,
                  double scale) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The quotient is a float32: what is rounded is that.
    const double quotient = scale == 0 ? 0 : static_cast<float>(values[i]) / static_cast<float>(scale);
    EXPECT_EQ(value_of(type, code_at(type, codes, first + i)), nearest(type, quotient))
        << name_of(type) << ": " << values[i] << " by " << scale;
  }
}

std::vector<float> row_of(std::size_t n, unsigned seed, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

void expect_row(DType type, const std::vector<float>& values, std::size_t group) {
  std::vector<std::byte> codes(bytes_of(type, values.size()));
  std::vector<std::uint16_t> scales(ceil_div(values.size(), group));
  const Peak peak = quantise_row(values, group, type, codes.data(), scales.data());
  EXPECT_LT(peak, kFirstPeakNotFinite);
  for (std::size_t g = 0; g < scales.size(); ++g) {
    const auto part = std::span(values).subspan(g * group, std::min(group, values.size() - g * group));
    const double scale = f32_from_bf16(scales[g]);
    SCOPED_TRACE(fmt::format("{} group {}", name_of(type), g));
    expect_scale(type, part, scale);
    expect_codes(type, part, codes, g * group, scale);
  }
}

class Quantise : public testing::TestWithParam<DType> {};

TEST_P(Quantise, RowsInGroups) {
  for (const float deviation : {0.02f, 1.0f, 1e30f, 1e-40f}) {
    expect_row(GetParam(), row_of(2048, 1, deviation), 32);
    expect_row(GetParam(), row_of(96, 2, deviation), 16);
    expect_row(GetParam(), row_of(1000, 3, deviation), 48);  // the last is shorter
    expect_row(GetParam(), row_of(1024, 4, deviation), 512);
  }
}

TEST_P(Quantise, WholeRows) {
  if (GetParam() == DType::kInt4) return;
  for (const std::size_t n : {1, 7, 33, 1000}) expect_row(GetParam(), row_of(n, 3, 0.02f), n);
}

// Every quotient that lies in the middle of two codes, both signs.
TEST_P(Quantise, TiesGoToTheEvenCode) {
  const DType type = GetParam();
  const std::uint16_t one = bf16_from_f32(1.0f);
  std::vector<float> values;
  for (int code = 0; code + 1 < codes_of(type) / 2; ++code) {
    if (!is_written(type, code + 1)) continue;
    const double middle = (value_of(type, code) + value_of(type, code + 1)) / 2;
    for (const double sign : {1.0, -1.0}) values.push_back(static_cast<float>(sign * middle));
  }
  std::vector<std::byte> codes(bytes_of(type, values.size()));
  encode(values, std::vector<std::uint16_t>(values.size(), one).data(), type, codes.data());
  expect_codes(type, values, codes, 0, 1.0);
  if (type == DType::kInt4) return;
  values.push_back(type == DType::kFp8 ? 448.0f : 127.0f);  // the scale is 1
  expect_row(type, values, values.size());
}

TEST_P(Quantise, ZerosHaveScaleAndCodesZero) {
  const std::vector<float> zeros = {0.0f, -0.0f, 0.0f, -0.0f};
  std::vector<std::byte> codes(bytes_of(GetParam(), 4), std::byte{0xff});
  std::uint16_t scale = 1;
  EXPECT_LE(quantise_row(zeros, 4, GetParam(), codes.data(), &scale), 1u);
  EXPECT_EQ(scale, 0);
  for (const std::byte code : codes) EXPECT_EQ(code, std::byte{0});
}

TEST_P(Quantise, ColumnsAreTheSameAsRows) {
  const DType type = GetParam();
  constexpr std::size_t kLines = 32, kColumns = 1102;
  std::vector<float> lines(kLines * kColumns);
  std::vector<std::vector<float>> columns(kColumns);
  for (std::size_t c = 0; c < kColumns; ++c) {
    columns[c] = row_of(kLines, static_cast<unsigned>(c), c % 100 == 3 ? 0 : 0.5f);
    for (std::size_t l = 0; l < kLines; ++l) lines[l * kColumns + c] = columns[c][l];
  }
  std::vector<Peak> peaks(kColumns);
  std::vector<std::uint16_t> scales(kColumns);
  std::vector<std::byte> codes(bytes_of(type, lines.size()));
  const auto line = [&](std::size_t l) { return std::span(lines).subspan(l * kColumns, kColumns); };
  for (std::size_t l = 0; l < kLines; ++l) raise_peaks(line(l), peaks.data());
  for (std::size_t c = 0; c < kColumns; ++c) {
    scales[c] = type == DType::kInt4 ? int4_scale_of(columns[c]) : scale_of(peaks[c], type);
  }
  for (std::size_t l = 0; l < kLines; ++l) {
    encode(line(l), scales.data(), type, codes.data() + bytes_of(type, l * kColumns));
  }
  for (std::size_t c = 0; c < kColumns; ++c) {
    std::vector<std::byte> alone(bytes_of(type, kLines));
    std::uint16_t scale = 0;
    quantise_row(columns[c], kLines, type, alone.data(), &scale);
    EXPECT_EQ(scale, scales[c]);
    for (std::size_t l = 0; l < kLines; ++l) {
      EXPECT_EQ(code_at(type, alone, l), code_at(type, codes, l * kColumns + c)) << c << ", " << l;
    }
  }
}

TEST_P(Quantise, PeaksShowWhatIsNotFinite) {
  for (const float bad : {INFINITY, -INFINITY, NAN, -NAN}) {
    std::vector<float> values = row_of(64, 4, 1.0f);
    std::vector<std::byte> codes(64);
    std::uint16_t scales[2];
    EXPECT_LT(quantise_row(values, 32, GetParam(), codes.data(), scales), kFirstPeakNotFinite);
    values[41] = bad;
    EXPECT_GE(quantise_row(values, 32, GetParam(), codes.data(), scales), kFirstPeakNotFinite);
  }
}

// Where several scales are exact, the largest value has code -8.
TEST(QuantiseInt4, TheFirstOfEqualScalesIsTaken) {
  std::vector<float> values(32);
  values[9] = 1.75f;  // by 7, too
  EXPECT_EQ(f32_from_bf16(int4_scale_of(values)), -1.75f / 8);
}

// All values but the largest are multiples of 0.25.
TEST(QuantiseInt4, TheScaleOfLeastErrorIsTaken) {
  for (const float divisor : {7.0f, 7.25f, 7.75f, 8.0f}) {
    std::vector<float> values(32);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i % 12) - 1.25f;
    values[9] = -0.25f * divisor;
    EXPECT_EQ(f32_from_bf16(int4_scale_of(values)), 0.25f) << divisor;
  }
}

// No bfloat16 is as small as their scale.
TEST(QuantiseInt4, GroupsOfTheSmallestNumbersAreZero) {
  const std::vector<float> values(32, 0x1p-149f);
  std::vector<std::byte> codes(16, std::byte{0xff});
  std::uint16_t scale = 1;
  quantise_row(values, 32, DType::kInt4, codes.data(), &scale);
  EXPECT_EQ(scale, 0);
  for (const std::byte code : codes) EXPECT_EQ(code, std::byte{0});
}

TEST(QuantiseInt4, GroupsThatAreTooLongAreRefused) {
  const std::vector<float> values(kLongestInt4Group + 2);
  std::vector<std::byte> codes(values.size() / 2);
  std::uint16_t scale = 0;
  EXPECT_THROW(int4_scale_of(values), Error);
  EXPECT_THROW(quantise_row(values, values.size(), DType::kInt4, codes.data(), &scale), Error);
}

INSTANTIATE_TEST_SUITE_P(Codes, Quantise, testing::ValuesIn(kQuantisedTo),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace computron::test
