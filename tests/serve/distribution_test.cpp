#include "computron/serve/distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace computron {
namespace {

double nearest_rank(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

TEST(Distribution, PercentilesAreThoseOfTheSortedValues) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> draw(-3, 4);
  std::vector<double> values(20'000);
  Distribution one, two, all;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 100 == 0 ? 0 : draw(random);
    (i % 3 == 0 ? one : two).add(values[i]);
  }
  all.merge(one);
  all.merge(Distribution());
  all.merge(two);
  std::sort(values.begin(), values.end());
  for (int p = 0; p <= 1000; ++p) {
    const double exact = nearest_rank(values, p / 1000.0);
    EXPECT_NEAR(all.percentile(p / 1000.0), exact, exact / 4096) << p;
  }
  EXPECT_EQ(all.max(), values.back());
  EXPECT_EQ(all.percentile(1), values.back()) << "clamped to what there is";
  double sum = 0;
  for (const double value : values) sum += value;
  EXPECT_NEAR(all.mean(), sum / 20'000, 1e-9 * all.mean());
}

TEST(Distribution, AFewValuesAreThemselves) {
  Distribution one;
  EXPECT_TRUE(one.empty());
  one.add(0.1234567);
  for (const double p : {0.0, 0.5, 1.0}) EXPECT_EQ(one.percentile(p), 0.1234567);
  one.add(-1e-9);  // clocks
  EXPECT_EQ(one.percentile(0.5), 0);
  Distribution whole;
  for (int value = 1; value <= 4096; ++value) whole.add(value);
  for (int value = 1; value <= 4096; ++value) EXPECT_EQ(whole.percentile(value / 4096.0), value);
}

}  // namespace
}  // namespace computron
