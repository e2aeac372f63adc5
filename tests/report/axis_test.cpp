#include "computron/report/axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace computron {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

std::vector<std::string> texts(const Axis& axis) {
  std::vector<std::string> all;
  for (const Tick& tick : axis.ticks) all.push_back(tick.text);
  return all;
}

TEST(RoundValues, AreMultiplesOfOneTwoOrFive) {
  EXPECT_THAT(round_values(0, 10, 6), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(round_values(0.3, 1.1, 3), ElementsAre(DoubleNear(0.5, 1e-12), DoubleNear(1, 1e-12)));
  for (const double high : {1e-9, 0.37, 1.0, 9.99, 123.0, 8.1e12}) {
    const auto values = round_values(0, high, 7);
    EXPECT_LE(values.size(), 7u) << high;
    EXPECT_GE(values.size(), 3u) << high;
    const double step = values[1] - values[0];
    const double digit = step / std::pow(10, std::floor(std::log10(step) + 1e-9));
    EXPECT_TRUE(std::abs(digit - 1) < 1e-6 || std::abs(digit - 2) < 1e-6 || std::abs(digit - 5) < 1e-6) << step;
  }
}

TEST(LinearAxis, TakesTheHighestIn) {
  const Axis axis = linear_axis("s", 0, 0.93, 6);
  EXPECT_THAT(texts(axis), ElementsAre("0.0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_DOUBLE_EQ(axis.high, 1);
  EXPECT_DOUBLE_EQ(axis.place(0.5), 0.5);
  EXPECT_DOUBLE_EQ(axis.place(7), 1) << "what lies outside is moved to the end";
  EXPECT_THAT(texts(linear_axis("", 0, 48000, 4)), ElementsAre("0", "20,000", "40,000", "60,000"));
}

TEST(LinearAxis, OfNothingHasAnExtent) {
  const Axis axis = linear_axis("", 0, 0);
  EXPECT_GT(axis.high, axis.low);
}

TEST(LogAxis, ShowsPowersAndWhatLiesBetween) {
  EXPECT_THAT(texts(log_axis("", 1, 100, 8)), ElementsAre("1", "2", "5", "10", "20", "50", "100"));
  EXPECT_THAT(texts(log_axis("", 1e-3, 1e3, 8)), ElementsAre("0.001", "0.01", "0.1", "1", "10", "100", "1,000"));
  EXPECT_DOUBLE_EQ(log_axis("", 1, 100).place(10), 0.5);
  const Axis one = log_axis("", 3, 3);
  EXPECT_GT(one.place(3), 0.1);
  EXPECT_LT(one.place(3), 0.9);
}

TEST(ValueAxis, HasATickAValue) {
  const double ranks[] = {1, 2, 4, 8};
  const Axis axis = value_axis("ranks", ranks);
  EXPECT_THAT(texts(axis), ElementsAre("1", "2", "4", "8"));
  EXPECT_NEAR(axis.place(2) - axis.place(1), axis.place(8) - axis.place(4), 1e-12);
}

}  // namespace
}  // namespace computron
