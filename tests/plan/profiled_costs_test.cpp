#include "computron/plan/profiled_costs.h"

#include <gmock/gmock.h>

#include "computron/model/shard_layout.h"

namespace computron::test {
namespace {

using ::testing::DoubleNear;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Two models of 8 MiB a stage on two stages; by the formula a pass takes 1 ms of each.
class ProfiledCosts : public ::testing::Test {
 protected:
  ProfiledCosts() { layout_.used_bytes = {8 * kMiB}; }

  ShardLayout layout_;
  CostModel costs_{{{&layout_, &layout_}, {&layout_, &layout_}}, {.memory_bytes_per_s = 8e30, .step_s = 1e-3}};
};

TEST_F(ProfiledCosts, PredictsThePassesOfTheProfileAndBetweenThem) {
  const ShapeProfile profile{.stage_s = {1, 1},
                             .stage_bytes = {1, 1},
                             .passes = {{1, {0.25f, 0.5f}}, {2, {0.375f, 0.5f}}, {16, {2.125f, 4.0f}}}};
  seed_costs(costs_, 1, profile);
  EXPECT_EQ(costs_.stage_pass_s(1, 0, 1), 0.25);
  EXPECT_EQ(costs_.stage_pass_s(1, 1, 2), 0.5);
  EXPECT_EQ(costs_.stage_pass_s(1, 0, 16), 2.125);
  EXPECT_THAT(costs_.stage_pass_s(1, 0, 9), DoubleNear(1.25, 1e-12));
  EXPECT_EQ(costs_.pass_s(0, 16), 2e-3) << "the other model keeps its formula";
  EXPECT_TRUE(costs_.has_observed_pass(1));
}

TEST_F(ProfiledCosts, WithoutPassesEveryPassTakesARequestsTime) {
  seed_costs(costs_, 0, {.stage_s = {0.25f, 0.5f}, .stage_bytes = {1, 1}});
  for (const int rows : {1, 7, 2048, 1 << 20}) {
    EXPECT_EQ(costs_.stage_pass_s(0, 0, rows), 0.25) << rows;
    EXPECT_EQ(costs_.stage_pass_s(0, 1, rows), 0.5) << rows;
  }
}

}  // namespace
}  // namespace computron::test
