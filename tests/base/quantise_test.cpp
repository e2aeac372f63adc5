// Codes and scales against a plain double loop over all codes.
#include "computron/base/quantise.h"

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

double expected_scale(DType type, std::span<const float> group) {
  double largest = 0;
  for (const float value : group) {
    if (std::fabs(value) > std::fabs(largest) || value == -std::fabs(largest)) largest = value;
  }
  if (type == DType::kInt4) return f32_from_bf16(bf16_from_f32(static_cast<float>(largest / -8)));
  const auto exact = static_cast<float>(std::fabs(largest)) / (type == DType::kFp8 ? 448.0f : 127.0f);
  std::uint16_t bits = bf16_from_f32(exact);
  if (f32_from_bf16(bits) < exact) ++bits;
  return f32_from_bf16(bits);
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
    EXPECT_EQ(scale, expected_scale(type, part)) << name_of(type) << " group " << g;
    expect_codes(type, part, codes, g * group, scale);
  }
}

class Quantise : public testing::TestWithParam<DType> {};

TEST_P(Quantise, RowsInGroups) {
  for (const float deviation : {0.02f, 1.0f, 1e30f, 1e-40f}) {
    expect_row(GetParam(), row_of(2048, 1, deviation), 32);
    expect_row(GetParam(), row_of(96, 2, deviation), 16);
  }
}

TEST_P(Quantise, WholeRows) {
  if (GetParam() == DType::kInt4) return;
  for (const std::size_t n : {1, 7, 33, 1000}) expect_row(GetParam(), row_of(n, 3, 0.02f), n);
}

// Every quotient that lies in the middle of two codes, both signs.
TEST_P(Quantise, TiesGoToTheEvenCode) {
  const DType type = GetParam();
  const float most = type == DType::kFp8 ? 448.0f : type == DType::kInt8 ? 127.0f : 8.0f;
  std::vector<float> values;
  for (int code = 0; code + 1 < codes_of(type) / 2; ++code) {
    if (!is_written(type, code + 1)) continue;
    const double middle = (value_of(type, code) + value_of(type, code + 1)) / 2;
    for (const double sign : {1.0, -1.0}) {
      values.resize(round_up(values.size(), std::size_t{32}) + 32, 0.0f);
      values[values.size() - 32] = -most;  // the scale is 1
      values[values.size() - 1] = static_cast<float>(sign * middle);
    }
  }
  expect_row(type, values, 32);
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
  for (std::size_t c = 0; c < kColumns; ++c) scales[c] = scale_of(peaks[c], type);
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

TEST(QuantiseInt4, TheLargestHasCodeMinusEight) {
  std::vector<float> values(32, 0.5f);
  values[9] = 2.0f;
  std::vector<std::byte> codes(16);
  std::uint16_t scale = 0;
  quantise_row(values, 32, DType::kInt4, codes.data(), &scale);
  EXPECT_EQ(f32_from_bf16(scale), -0.25f);
  EXPECT_EQ(code_at(DType::kInt4, codes, 9), 8);
  EXPECT_EQ(code_at(DType::kInt4, codes, 8), 14);  // -2
}

INSTANTIATE_TEST_SUITE_P(Codes, Quantise, testing::ValuesIn(kQuantisedTo),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace computron::test
