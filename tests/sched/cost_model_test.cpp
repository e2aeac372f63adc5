#include "computron/sched/cost_model.h"

#include <gmock/gmock.h>

#include "computron/model/shard_layout.h"

namespace computron::test {
namespace {

using ::testing::DoubleNear;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// 64 MiB of weights, 1e6 multiplications and additions a row.
ShardLayout make_layout() {
  ShardLayout layout;
  layout.used_bytes = {32 * kMiB, 32 * kMiB};
  ShardTensor weight;
  weight.name = "weight";
  weight.role = TensorRole::kGemmWeight;
  weight.rows = 500;
  weight.columns = 1000;
  layout.plan.tensors = {weight};
  return layout;
}

// By the options a pass reads for 4 ms and computes for 0.1 ms a row: 40 rows take as long to compute as to read.
constexpr CostOptions kOptions = {
    .link_bytes_per_s = 1e9, .memory_bytes_per_s = 64 * kMiB / 4e-3, .flops_per_s = 1e10, .step_s = 1e-3};

class CostModelTest : public ::testing::Test {
 protected:
  void observe(int rows, double seconds, int times = 1, std::size_t stage = 0) {
    for (int i = 0; i < times; ++i) costs_.observe_pass(0, stage, rows, seconds);
  }

  ShardLayout layout_ = make_layout();
  CostModel costs_{{{&layout_, &layout_}, {&layout_, &layout_}}, kOptions};
};

TEST_F(CostModelTest, BeginsWithTheFormula) {
  EXPECT_DOUBLE_EQ(costs_.stage_pass_s(0, 0, 1), 5e-3);
  EXPECT_DOUBLE_EQ(costs_.stage_pass_s(0, 0, 40), 5e-3);
  EXPECT_DOUBLE_EQ(costs_.stage_pass_s(0, 0, 100), 11e-3);
  EXPECT_DOUBLE_EQ(costs_.pass_s(0, 100), 22e-3);
  EXPECT_DOUBLE_EQ(costs_.bottleneck_s(0, 100), 11e-3);
  EXPECT_DOUBLE_EQ(costs_.transfer_s(0, 500), 5e-7);
  EXPECT_DOUBLE_EQ(costs_.swap_s(0), 64 * kMiB / 1e9);
}

// A and B are tables: a row goes through both.
TEST_F(CostModelTest, CountsAnAdaptersProducts) {
  ShardLayout layout = make_layout();
  const auto add = [&](const char* name, TensorRole role, int rows) {
    ShardTensor& tensor = layout.plan.tensors.emplace_back();
    tensor.name = name;
    tensor.role = role;
    tensor.rows = rows;
    tensor.columns = role == TensorRole::kTable ? 100 : 1;
  };
  add("layers.0.mlp.up.lora_a", TensorRole::kTable, 1000);
  add("layers.0.mlp.up.lora_scale", TensorRole::kVector, 1);
  add("layers.0.mlp.up.lora_b", TensorRole::kTable, 500);
  add("embedding.positions.weight", TensorRole::kTable, 5000);
  const CostModel costs({{&layout}}, kOptions);
  EXPECT_DOUBLE_EQ(costs.stage_pass_s(0, 0, 1000), 1e-3 + 1000 * 2 * (500e3 + 100e3 + 50e3) / 1e10);
}

// A row chooses a quarter of the experts: it is multiplied with so much of them, and several rows read what any of them
// chooses.
TEST_F(CostModelTest, OfExpertsPassesReadWhatRowsChoose) {
  ShardLayout layout = make_layout();
  layout.plan.config.experts = 8;
  layout.plan.config.experts_per_token = 2;
  layout.plan.tensors.front().name = "layers.0.mlp.experts.3.up.weight";  // f32
  const CostModel costs({{&layout}}, kOptions);
  const auto read_s = [](double unread_share) {
    return (64 * kMiB - 4 * 500e3 * unread_share) / kOptions.memory_bytes_per_s;
  };
  EXPECT_DOUBLE_EQ(costs.stage_pass_s(0, 0, 1), 1e-3 + read_s(0.75));
  EXPECT_DOUBLE_EQ(costs.stage_pass_s(0, 0, 3), 1e-3 + read_s(0.75 * 0.75 * 0.75));
  EXPECT_DOUBLE_EQ(costs.stage_pass_s(0, 0, 1000), 1e-3 + 1000 * 1e6 / 4 / kOptions.flops_per_s);
}

// Small passes and large ones, in turn, do not spoil each other's predictions, though the formula holds both for reads.
TEST_F(CostModelTest, LearnsSmallAndLargePassesApart) {
  for (int i = 0; i < 20; ++i) {
    observe(1, 6e-3);
    observe(8, 9e-3);
    observe(32, 20e-3);
  }
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 1), DoubleNear(6e-3, 1e-9));
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 8), DoubleNear(9e-3, 1e-9));
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 32), DoubleNear(20e-3, 1e-9));
}

TEST_F(CostModelTest, InterpolatesBetweenSizesSeen) {
  observe(8, 8e-3);
  observe(32, 20e-3);
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 14), DoubleNear(11e-3, 1e-9));
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 20), DoubleNear(14e-3, 1e-9));
}

// Twice what the formula says of the nearest size: twice what it says.
TEST_F(CostModelTest, ScalesTheFormulaBeyondSizesSeen) {
  observe(30, 10e-3);
  observe(50, 12e-3);
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 1), DoubleNear(10e-3, 1e-9));
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 100), DoubleNear(22e-3, 1e-9));
}

TEST_F(CostModelTest, IsRightAfterAFewStepsAndFollowsChanges) {
  observe(8, 10e-3, 4);
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 8), DoubleNear(10e-3, 1e-9));
  observe(8, 30e-3, 500);
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 8), DoubleNear(30e-3, 0.1e-3));
}

// One pass in many that something else held up.
TEST_F(CostModelTest, IsNotCarriedAwayByOnePass) {
  observe(8, 10e-3, 100);
  observe(8, 74e-3);
  EXPECT_THAT(costs_.stage_pass_s(0, 0, 8), DoubleNear(11e-3, 0.1e-3));
}

TEST_F(CostModelTest, KeepsModelsAndStagesApart) {
  observe(8, 10e-3, 5, /*stage=*/1);
  EXPECT_DOUBLE_EQ(costs_.stage_pass_s(0, 0, 8), 5e-3);
  EXPECT_DOUBLE_EQ(costs_.stage_pass_s(1, 1, 8), 5e-3);
  EXPECT_THAT(costs_.pass_s(0, 8), DoubleNear(15e-3, 1e-9));
  EXPECT_THAT(costs_.bottleneck_s(0, 8), DoubleNear(10e-3, 1e-9));
}

TEST_F(CostModelTest, IgnoresPassesThatTookNoTime) {
  observe(8, 0);
  EXPECT_DOUBLE_EQ(costs_.stage_pass_s(0, 0, 8), 5e-3);
}

TEST_F(CostModelTest, LearnsALinksRateFromOneSwap) {
  costs_.observe_transfer(0, 64 * kMiB, 64 * kMiB / 4e9);
  EXPECT_THAT(costs_.link_bytes_per_s(0), DoubleNear(4e9, 0.2e9));
  EXPECT_DOUBLE_EQ(costs_.link_bytes_per_s(1), 1e9);
  EXPECT_THAT(costs_.swap_s(0), DoubleNear(64 * kMiB / 1e9, 1e-9)) << "the slower stage's";
}

// A page that was slow weighs as much as its bytes, and what has been long ago nothing.
TEST_F(CostModelTest, WeighsTransfersByTheirBytes) {
  for (int i = 0; i < 4; ++i) costs_.observe_transfer(0, 100 * kMiB, 100 * kMiB / 2e9);
  costs_.observe_transfer(0, 2 * kMiB, 2 * kMiB / 1e9);
  EXPECT_THAT(costs_.link_bytes_per_s(0), DoubleNear(2e9, 0.02e9));
  for (int i = 0; i < 1000; ++i) costs_.observe_transfer(0, 100 * kMiB, 100 * kMiB / 1e9);
  EXPECT_THAT(costs_.link_bytes_per_s(0), DoubleNear(1e9, 0.01e9));
}

TEST_F(CostModelTest, SwapsTakeWhatCrossesTheLinkAndPassesReadWhatIsInFrames) {
  const CostOptions options = {.link_bytes_per_s = 1e9, .memory_bytes_per_s = 64 * kMiB / 4e-3, .step_s = 1e-3};
  layout_.link_bytes = {20 * kMiB, 24 * kMiB};
  const CostModel coded({{&layout_}}, options);
  EXPECT_DOUBLE_EQ(coded.swap_s(0), 44 * kMiB / 1e9);
  EXPECT_DOUBLE_EQ(coded.stage_pass_s(0, 0, 1), 5e-3);
}

TEST_F(CostModelTest, IgnoresTransfersTooSmallToTell) {
  costs_.observe_transfer(0, kMiB / 2, 1);
  costs_.observe_transfer(0, 8 * kMiB, 0);
  EXPECT_DOUBLE_EQ(costs_.link_bytes_per_s(0), 1e9);
}

}  // namespace
}  // namespace computron::test
