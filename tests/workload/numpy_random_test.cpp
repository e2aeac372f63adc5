#include "computron/workload/numpy_random.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>

namespace computron {
namespace {

// What NumPy 1.24.4 gave for 200,000 draws after numpy.random.seed(1234): the exclusive or of all bits, first and last.
struct Golden {
  const char* call;
  std::uint64_t bits;
  double first, last;
};

void expect_golden(const Golden& golden, const std::function<double(NumpyRandom&)>& draw) {
  NumpyRandom random(1234);
  std::uint64_t bits = 0;
  double first = 0, last = 0;
  for (int i = 0; i < 200000; ++i) {
    last = draw(random);
    if (i == 0) first = last;
    bits ^= std::bit_cast<std::uint64_t>(last);
  }
  EXPECT_EQ(bits, golden.bits) << golden.call;
  EXPECT_EQ(first, golden.first) << golden.call;
  EXPECT_EQ(last, golden.last) << golden.call;
}

TEST(NumpyRandom, DrawsAreNumpysToTheLastBit) {
  expect_golden({"gamma(4, .25/3)", 0x19ab81e9226d00, 0.3871255478627525, 0.13746001840198135},
                [](NumpyRandom& r) { return .25 / 3 * r.standard_gamma(4); });
  expect_golden({"gamma(1, 1/3)", 0x3bb3abfb837a09, 0.07086621920616003, 0.09433711446306348},
                [](NumpyRandom& r) { return 1. / 3 * r.standard_gamma(1); });
  expect_golden({"gamma(1/16, 16/3)", 0xdf8e7fc1d472deb, 1.7474506338302055e-11, 4.794616629806304e-35},
                [](NumpyRandom& r) { return 16. / 3 * r.standard_gamma(1. / 16); });
  expect_golden({"pareto(2.5)", 0x7fa85472d31d22a1, 0.08876003163935642, 0.11986096292527626},
                [](NumpyRandom& r) { return r.pareto(2.5); });
  expect_golden({"weibull(.5)", 0x241abcd36cfc352, 0.04519818922117973, 0.08009542048695426},
                [](NumpyRandom& r) { return r.weibull(.5); });
  expect_golden({"exponential(2.5)", 0x7e73b6879d26af20, 0.5314966440462002, 0.7075283584729761},
                [](NumpyRandom& r) { return 2.5 * r.standard_exponential(); });
  expect_golden({"standard_normal()", 0x80ab92e7fdd80d01, 0.47143516373249306, 1.5450532722101202},
                [](NumpyRandom& r) { return r.standard_normal(); });
}

TEST(NumpyRandom, UniformsAreNumpys) {
  NumpyRandom random(7);
  EXPECT_EQ(random.uniform(), 0.07630828937395717);
  EXPECT_EQ(random.uniform(), 0.7799187922401146);
  EXPECT_EQ(random.uniform(), 0.4384092314408935);
}

}  // namespace
}  // namespace computron
