#include "computron/placement/stage_slicing.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>
#include <random>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;

// All ways to cut so many blocks into so many stages.
void for_each_cut(int blocks, int stages, std::vector<int>& cut, const auto& visit) {
  if (stages == 1) {
    cut.push_back(blocks);
    visit(cut);
    cut.pop_back();
    return;
  }
  for (int first = 1; first <= blocks - stages + 1; ++first) {
    cut.push_back(first);
    for_each_cut(blocks - first, stages - 1, cut, visit);
    cut.pop_back();
  }
}

TEST(StageSlicing, EqualsBruteForceUpToTwelveBlocks) {
  std::mt19937 random(5);
  const auto cost = [&random] {
    return LayerCost{static_cast<double>(random() % 100), static_cast<double>(random() % 100)};
  };
  for (int blocks = 1; blocks <= 12; ++blocks) {
    for (int stages = 1; stages <= blocks; ++stages) {
      SliceCosts costs{.embedding = cost(), .blocks = {}, .head = cost(), .hop_s = static_cast<double>(random() % 50)};
      for (int i = 0; i < blocks; ++i) costs.blocks.push_back(cost());
      const double lambda = static_cast<double>(random() % 4) / 2;
      double least = std::numeric_limits<double>::infinity();
      std::vector<int> cut;
      for_each_cut(blocks, stages, cut, [&](const std::vector<int>& each) {
        least = std::min(least, slowest_stage_s(costs, each, lambda));
      });
      const auto slices = slice_stages(costs, stages, lambda);
      EXPECT_EQ(slices.size(), static_cast<std::size_t>(stages));
      EXPECT_EQ(std::accumulate(slices.begin(), slices.end(), 0), blocks);
      EXPECT_GE(*std::ranges::min_element(slices), 1);
      EXPECT_EQ(slowest_stage_s(costs, slices, lambda), least) << blocks << " blocks, " << stages << " stages";
    }
  }
}

TEST(StageSlicing, LeavesFewerBlocksWhereEmbeddingAndHeadAre) {
  const SliceCosts costs{.embedding = {2, 0}, .blocks = std::vector<LayerCost>(12, {1, 0}), .head = {4, 0}};
  EXPECT_THAT(slice_stages(costs, 3, 0), ElementsAre(4, 6, 2));
  EXPECT_EQ(slowest_stage_s(costs, std::vector<int>{4, 6, 2}, 0), 6);
}

// Ten blocks of a second: the first stage sends for four.
TEST(StageSlicing, HopsCountForTheStageThatSends) {
  const LayeredProfile model{.embedding = {}, .blocks = std::vector<LayerProfile>(10, {1, 1}), .head = {}, .hop_s = 4};
  const ShapeProfile profile = sliced(model, 2, 0, 0);
  EXPECT_THAT(profile.layers, ElementsAre(3, 7));
  EXPECT_THAT(profile.stage_s, ElementsAre(7.f, 7.f));
}

TEST(StageSlicing, TransfersCountAsLambdaSays) {
  // Computing is all in the first two blocks, copying all in the last two.
  const SliceCosts costs{.embedding = {}, .blocks = {{4, 0}, {4, 0}, {0, 4}, {0, 4}}, .head = {}};
  EXPECT_THAT(slice_stages(costs, 2, 0), ElementsAre(1, 3));
  EXPECT_EQ(slowest_stage_s(costs, slice_stages(costs, 3, 1), 1), 4);
  EXPECT_EQ(slowest_stage_s(costs, slice_stages(costs, 2, 3), 3), 12);
}

TEST(StageSlicing, MoreStagesThanBlocksAreRefused) {
  const SliceCosts costs{.embedding = {}, .blocks = {{1, 1}}, .head = {}};
  expect_error(ExitCode::kUsage, "1 blocks cannot be cut into 2 stages", [&] { slice_stages(costs, 2, 0); });
  expect_error(ExitCode::kUsage, "0 stages", [&] { slice_stages(costs, 0, 0); });
}

}  // namespace
}  // namespace computron
