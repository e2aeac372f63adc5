// Which ranks serve which models, and what is refused.
#include "computron/serve/job_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/base/error.h"
#include "tests/serve/two_models.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JobOptions placed(std::vector<GroupSpec> groups) {
  JobOptions options = models_a_and_b();
  options.placement = std::move(groups);
  return options;
}

std::string refusal(const JobOptions& options, int ranks) {
  try {
    job_groups(options, ranks);
    return {};
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(JobGroups, OneHasAllModelsAndAllRanks) {
  const std::vector<JobGroup> groups = job_groups(models_a_and_b(), 4);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].shape, (MeshShape{.tp = 4, .pp = 1}));
  EXPECT_THAT(groups[0].models, ElementsAre(0, 1));
}

TEST(JobGroups, EqualOnesEachHaveEveryModel) {
  JobOptions options = models_a_and_b();
  options.groups = 3;
  options.pp = 2;
  const std::vector<JobGroup> groups = job_groups(options, 12);
  ASSERT_EQ(groups.size(), 3u);
  for (const JobGroup& group : groups) {
    EXPECT_EQ(group.shape, (MeshShape{.tp = 2, .pp = 2}));
    EXPECT_THAT(group.models, ElementsAre(0, 1));
  }
}

TEST(JobGroups, PlacedOnesHaveTheirOwnModelsInTheJobsOrder) {
  const std::vector<JobGroup> groups = job_groups(
      placed({{.tp = 1, .pp = 2, .models = {"b", "a"}, .layers = {}}, {.models = {"b"}, .layers = {{"b", {3}}}}}), 3);
  EXPECT_EQ(refusal(placed({{.tp = 2, .pp = 1, .models = {"b", "a"}, .layers = {}}}), 2), "");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(groups[0].models, ElementsAre(0, 1));
  EXPECT_THAT(groups[1].models, ElementsAre(1));
  EXPECT_THAT(groups[1].layers.at(1), ElementsAre(3));
}

TEST(JobGroups, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(refusal(placed({{.tp = 2, .pp = 1, .models = {"a"}, .layers = {}}, {.models = {"b"}, .layers = {}}}), 4),
              HasSubstr("tp 2 x pp 1 + tp 1 x pp 1 needs 3 ranks, but the job has 4"));
  EXPECT_THAT(refusal(placed({{.models = {"a"}, .layers = {}}}), 1), HasSubstr("model 'b' is in no group"));
  EXPECT_THAT(refusal(placed({{.models = {"a", "b", "c"}, .layers = {}}}), 1), HasSubstr("'c', which the job has not"));
  JobOptions options = models_a_and_b();
  options.groups = 3;
  EXPECT_THAT(refusal(options, 4), HasSubstr("needs 3 ranks, but the job has 4"));
}

// tp changes the order of sums, and so the bits.
TEST(JobGroups, ReplicasHaveOneTpUnlessTheJobIsReproducible) {
  JobOptions options = placed(
      {{.tp = 2, .pp = 1, .models = {"a", "b"}, .layers = {}}, {.tp = 1, .pp = 2, .models = {"a"}, .layers = {}}});
  EXPECT_THAT(refusal(options, 4), HasSubstr("model 'a' has replicas with tp 2 and tp 1 (group 1)"));
  options.reproducible = true;
  EXPECT_EQ(refusal(options, 4), "");
}

// There pieces of products follow the pages of a stage.
TEST(JobGroups, ReplicasOnGpusHaveTheSameStages) {
  JobOptions options =
      placed({{.tp = 1, .pp = 2, .models = {"a", "b"}, .layers = {}}, {.models = {"a"}, .layers = {}}});
  EXPECT_EQ(refusal(options, 3), "");
  options.device = DeviceChoice::kGpu;
  EXPECT_THAT(refusal(options, 3), HasSubstr("model 'a' has replicas with different stages, on GPUs (group 1)"));
}

}  // namespace
}  // namespace computron
