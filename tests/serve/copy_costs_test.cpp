#include "computron/serve/copy_costs.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace computron {
namespace {

TEST(CopyCosts, AreTimesAndRates) {
  const auto device = make_cpu_device({.link_gb_per_s = 2});
  Progress progress(IdlePolicy::parse("yield"));
  const MeasuredCosts costs = measure_costs(*device, progress);
  for (const double positive : {costs.copies.bytes_per_s, costs.compute_s_per_byte}) {
    EXPECT_GT(positive, 0);
    EXPECT_TRUE(std::isfinite(positive));
  }
  for (const double cost_s : {costs.copies.copy_s, costs.copies.event_s}) {
    EXPECT_GE(cost_s, 0);
    EXPECT_TRUE(std::isfinite(cost_s));
  }
}

TEST(CopyCosts, OfAllRanksAreTheSlowestOnes) {
  const std::array<MeasuredCosts, 3> ranks = {
      MeasuredCosts{.copies = {.copy_s = 1, .bytes_per_s = 10, .event_s = 3}, .compute_s_per_byte = 5},
      MeasuredCosts{.copies = {.copy_s = 2, .bytes_per_s = 20, .event_s = 2}, .compute_s_per_byte = 6},
      MeasuredCosts{.copies = {.copy_s = 1, .bytes_per_s = 5, .event_s = 1}, .compute_s_per_byte = 4}};
  const MeasuredCosts all = slowest(ranks);
  EXPECT_EQ(all.copies.copy_s, 2);
  EXPECT_EQ(all.copies.bytes_per_s, 5);
  EXPECT_EQ(all.copies.event_s, 3);
  EXPECT_EQ(all.compute_s_per_byte, 6);
}

}  // namespace
}  // namespace computron
