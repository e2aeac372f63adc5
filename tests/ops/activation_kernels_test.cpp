// Activations in vectors of eight and of sixteen: the same bits.
#include "kernels/cpu/activation_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "computron/kernels/types.h"
#include "kernels/cpu/isa.h"

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
  while (all.size() < count) all.push_back(std::copysign(std::exp2(exponent(random)), sign(random)));
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

class ActivationKernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kernels::usable_isa() < kernels::Isa::kAvx512) GTEST_SKIP() << "a processor without AVX-512";
  }

  // What `run` of both widths writes behind an equal beginning; lengths leave partial vectors of every kind.
  template <class Run>
  void expect_equal(Run&& run) {
    for (const int n : {1, 7, 8, 9, 15, 16, 17, 31, 1000}) {
      const auto count = static_cast<std::size_t>(n);
      std::vector<float> narrow = values(1024, 3), wide = narrow;
      run(kernels::activation_avx2(), n, narrow.data());
      run(kernels::activation_avx512(), n, wide.data());
      EXPECT_EQ(std::memcmp(narrow.data(), wide.data(), narrow.size() * sizeof(float)), 0) << n << " values";
      EXPECT_NE(std::memcmp(narrow.data(), values(1024, 3).data(), count * sizeof(float)), 0) << "nothing was written";
    }
  }
};

TEST_F(ActivationKernelsTest, HaveTheSameBitsAtBothWidths) {
  const std::vector<float> x = values(1024, 1), other = values(1024, 2);
  for (const Activation activation : kAll) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(static_cast<int>(activation));
      for (const float* bias : {static_cast<const float*>(nullptr), other.data()}) {
        expect_equal([&](const kernels::ActivationKernels& kernels, int n, float* out) {
          kernels.activate(activation, x.data(), bias, n, reinterpret_cast<std::byte*>(out), dtype);
        });
      }
      for (const Gate& rule : {Gate(activation), Gate(activation, 7, 1)}) {
        expect_equal([&](const kernels::ActivationKernels& kernels, int n, float* out) {
          kernels.activate_gate(rule, x.data(), other.data(), n, reinterpret_cast<std::byte*>(out), dtype);
        });
      }
    }
  }
}

TEST_F(ActivationKernelsTest, OfSumsHaveTheSameBitsAtBothWidths) {
  const std::vector<float> x = values(1024, 1);
  expect_equal([&](const kernels::ActivationKernels& kernels, int n, float* inout) { kernels.soft_cap(30, n, inout); });
  expect_equal([&](const kernels::ActivationKernels& kernels, int n, float* inout) {
    for (const float gate : {-3.0f, 0.2f, 5.0f}) kernels.add_gated(gate, x.data(), n, inout);
  });
}

}  // namespace
}  // namespace computron::test
