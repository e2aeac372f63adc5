// Activations in vectors of eight and of sixteen: the same bits.
#include "kernels/cpu/activation_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "computron/kernels/types.h"
#include "kernels/cpu/exp2.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace computron::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Activation kAll[] = {Activation::kNone, Activation::kRelu, Activation::kGeluTanh, Activation::kGeluErf,
                               Activation::kSilu, Activation::kTanh, Activation::kQuickGelu};

// Of every magnitude, both signs, and what has no magnitude.
std::vector<float> values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-40, 8), sign(-1, 1);
  std::vector<float> all = {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 1e-40f, -1e-40f, 88.7f, -87.4f, 3e38f};
  // Where the tail of GELU becomes zero.
  for (float x = 13.0f; x < 13.4f; x += 0.01f) all.insert(all.end(), {x, -x});
  while (all.size() < std::max<std::size_t>(count, 100))
    all.push_back(std::copysign(std::exp2(exponent(random)), sign(random)));
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

TEST(Exp2, MatchesDoublePrecision) {
  std::vector<float> x = {0.0f, -0.0f, -126.0f, -126.4f};
  for (float value = -126.0f; value < 127; value += 0.00317f) x.push_back(value);
  for (int n = -126; n < 127; ++n) {  // beside the places where the nearest integer changes
    for (const float to : {-kInfinity, kInfinity}) x.push_back(std::nextafter(static_cast<float>(n) + 0.5f, to));
  }
  x.resize(x.size() / kernels::kLanes * kernels::kLanes);
  for (std::size_t i = 0; i < x.size(); i += kernels::kLanes) {
    std::array<float, kernels::kLanes> found;
    kernels::store(found.data(), kernels::exp2<kernels::Lanes8>(kernels::load(&x[i])));
    for (std::size_t l = 0; l < found.size(); ++l) {
      const double expected = std::exp2(static_cast<double>(x[i + l]));
      ASSERT_NEAR(found[l], expected, 2.4e-7 * expected) << x[i + l];
    }
  }
}

TEST(Exp2, UnderflowsToZero) {
  const float x[kernels::kLanes] = {-127.0f, -126.6f, -1e30f, -kInfinity, std::nanf(""), -200.0f, -300.0f, 1.0f};
  float found[kernels::kLanes];
  kernels::store(found, kernels::exp2<kernels::Lanes8>(kernels::load(x)));
  for (const int i : {0, 1, 2, 3, 5, 6}) EXPECT_EQ(found[i], 0) << x[i];
  EXPECT_TRUE(std::isnan(found[4]));
  EXPECT_EQ(found[7], 2);
}

kernels::ActivationTile one_row(const float* x, const float* bias, int n, std::byte* out, DType dtype) {
  return {.x = x, .x_stride = 0, .bias = bias, .rows = 1, .columns = n, .out = out, .out_stride = 0, .dtype = dtype};
}

class ActivationKernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::usable_isa() < kernels::Isa::kAvx512) GTEST_SKIP() << "a processor without AVX-512";
  }

  // What `run` of both widths writes behind an equal beginning, given inputs of just so many values; lengths leave
  // partial vectors of every kind.
  template <class Run>
  void expect_equal(Run&& run) {
    for (const int n : {1, 7, 8, 9, 15, 16, 17, 31, 33, 48, 1000}) {
      const auto count = static_cast<std::size_t>(n);
      const std::vector<float> x = values(count, 1), other = values(count, 2);
      std::vector<float> narrow = values(1024, 3), wide = narrow;
      run(kernels::activation_avx2(), n, x.data(), other.data(), narrow.data());
      run(kernels::activation_avx512(), n, x.data(), other.data(), wide.data());
      EXPECT_EQ(std::memcmp(narrow.data(), wide.data(), narrow.size() * sizeof(float)), 0) << n << " values";
      EXPECT_NE(std::memcmp(narrow.data(), values(1024, 3).data(), count * sizeof(float)), 0) << "nothing was written";
    }
  }
};

TEST_F(ActivationKernelsTest, HaveTheSameBitsAtBothWidths) {
  for (const Activation activation : kAll) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(static_cast<int>(activation));
      for (const bool biased : {false, true}) {
        expect_equal([&](const auto& kernels, int n, const float* x, const float* bias, float* out) {
          kernels.activate(activation,
                           one_row(x, biased ? bias : nullptr, n, reinterpret_cast<std::byte*>(out), dtype));
        });
      }
      for (const Gate& rule : {Gate(activation), Gate(activation, 7, 1)}) {
        expect_equal([&](const auto& kernels, int n, const float* gate, const float* up, float* out) {
          kernels.activate_gate(rule, gate, up, n, reinterpret_cast<std::byte*>(out), dtype);
        });
      }
    }
  }
}

TEST_F(ActivationKernelsTest, OfSumsHaveTheSameBitsAtBothWidths) {
  expect_equal(
      [](const auto& kernels, int n, const float*, const float*, float* inout) { kernels.soft_cap(30, n, inout); });
  expect_equal([](const auto& kernels, int n, const float* x, const float*, float* inout) {
    for (const float gate : {-3.0f, 0.2f, 5.0f}) kernels.add_gated(gate, x, n, inout);
  });
}

// A tile within larger arrays, beside which nothing is written.
void expect_rows(const kernels::ActivationKernels& kernels, const float* bias, DType dtype) {
  constexpr int kRows = 3, kColumns = 37;
  constexpr std::size_t kXStride = 40, kOutColumns = 50;
  const std::size_t out_stride = kOutColumns * size_of(dtype), before = 5 * size_of(dtype);
  const std::vector<float> x = values(kRows * kXStride, 1);
  std::vector<std::byte> found(kRows * out_stride, std::byte{7}), expected = found;
  kernels.activate(Activation::kGeluErf, {.x = x.data(),
                                          .x_stride = kXStride,
                                          .bias = bias,
                                          .rows = kRows,
                                          .columns = kColumns,
                                          .out = found.data() + before,
                                          .out_stride = out_stride,
                                          .dtype = dtype});
  for (std::size_t r = 0; r < kRows; ++r) {
    std::byte* out = expected.data() + before + r * out_stride;
    kernels.activate(Activation::kGeluErf, one_row(x.data() + r * kXStride, bias, kColumns, out, dtype));
  }
  EXPECT_EQ(found, expected);
}

TEST(ActivationTiles, HaveTheBitsOfTheirRowsOneByOne) {
  const std::vector<float> bias = values(64, 2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const float* some : {bias.data(), static_cast<const float*>(nullptr)}) {
      expect_rows(kernels::activation_avx2(), some, dtype);
      if (kernels::usable_isa() >= kernels::Isa::kAvx512) expect_rows(kernels::activation_avx512(), some, dtype);
    }
  }
}

}  // namespace
}  // namespace computron::test
