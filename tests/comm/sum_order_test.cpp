#include "src/comm/sum_order.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace computron {
namespace {

using Vectors = std::vector<std::vector<float>>;

Vectors random_parts(std::size_t parts, std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Vectors all(parts, std::vector<float>(count));
  for (auto& part : all) {
    for (float& x : part) x = normal(random);
  }
  return all;
}

std::vector<float> summed(Vectors parts, std::size_t begin, std::size_t end) {
  std::vector<float*> pointers;
  for (auto& part : parts) pointers.push_back(part.data());
  std::vector<float> out(parts[0].size(), -1.0f);
  sum_in_order(pointers, out.data(), begin, end);
  return out;
}

TEST(SumOrder, PowersOfTwoAddAsATree) {
  const Vectors p = random_parts(8, 5003);
  const auto out = summed(p, 0, 5003);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float lower = (p[0][i] + p[1][i]) + (p[2][i] + p[3][i]);
    const float upper = (p[4][i] + p[5][i]) + (p[6][i] + p[7][i]);
    ASSERT_EQ(out[i], lower + upper) << i;
  }
}

TEST(SumOrder, OtherCountsAddByRank) {
  const Vectors p = random_parts(5, 5003);
  const auto out = summed(p, 0, 5003);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], (((p[0][i] + p[1][i]) + p[2][i]) + p[3][i]) + p[4][i]) << i;
  }
}

TEST(SumOrder, LeavesTheRestAlone) {
  const auto out = summed(random_parts(4, 100), 10, 20);
  EXPECT_EQ(out[9], -1.0f);
  EXPECT_NE(out[10], -1.0f);
  EXPECT_NE(out[19], -1.0f);
  EXPECT_EQ(out[20], -1.0f);
}

TEST(SumOrder, WritesOverAnyOfItsParts) {
  const Vectors p = random_parts(4, 3000);
  const auto expected = summed(p, 0, 3000);
  for (std::size_t target = 0; target < p.size(); ++target) {
    Vectors parts = p;
    std::vector<float*> pointers;
    for (auto& part : parts) pointers.push_back(part.data());
    sum_in_order(pointers, parts[target].data(), 0, 3000);
    EXPECT_EQ(parts[target], expected) << target;
  }
}

}  // namespace
}  // namespace computron
