#include "computron/placement/prediction.h"

#include <gmock/gmock.h>

#include "computron/placement/group_search.h"
#include "computron/placement/model_search.h"
#include "tests/placement/search_support.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// "a" and "b" take 1 s and 10 bytes on a rank, or two stages of .5 s and 5 bytes.
SearchProblem two_models() {
  SearchProblem problem;
  for (const char* id : {"a", "b"}) {
    problem.models.push_back({id, {{{1, 1}, even_stages(1, 1, 10)}, {{1, 2}, even_stages(2, .5, 5)}}});
  }
  problem.models[1].shapes[{1, 2}].layers = {3, 1};
  problem.slo_s = {2.5f, 2.5f};
  problem.ranks = 3;
  problem.memory.device_bytes = 20;
  problem.stage_penalty = problem.constant_s = 0;
  return problem;
}

// Group 0 serves a at 1 s each; the third request of the first second is late. Group 1 is idle for b until 6.
TEST(Predict, CountsWhatGroupsAndModelsDo) {
  PlacementEvaluator evaluator(two_models());
  const ModelPlacement placement = {{{1, 1}, {0}}, {{1, 2}, {1}}};
  const std::vector<Arrival> arrivals = {{0, 0}, {0, 0}, {0, 0}, {6, 1}};
  const Prediction told = predict(evaluator, placement, arrivals, 10);
  EXPECT_EQ(told.duration_s, 10);
  EXPECT_EQ(told.requests, 4u);
  EXPECT_EQ(told.served, 3u);
  EXPECT_EQ(told.attainment, .75);
  EXPECT_DOUBLE_EQ(told.mean_latency_s, (1 + 2 + 1) / 3.);
  EXPECT_DOUBLE_EQ(told.p99_latency_s, 2);
  EXPECT_DOUBLE_EQ(told.makespan_s, 7);
  ASSERT_EQ(told.groups.size(), 2u);
  EXPECT_EQ(told.groups[0].rank_bytes, 10);
  EXPECT_EQ(told.groups[1].rank_bytes, 5);
  EXPECT_DOUBLE_EQ(told.groups[0].utilisation, .2);
  EXPECT_DOUBLE_EQ(told.groups[1].utilisation, .05);
  EXPECT_DOUBLE_EQ(told.groups[0].requests_per_s, .3);
  EXPECT_DOUBLE_EQ(told.groups[0].attainment, 2. / 3);
  EXPECT_DOUBLE_EQ(told.groups[1].attainment, 1);
  ASSERT_EQ(told.models.size(), 2u);
  EXPECT_EQ(told.models[0].requests, 3u);
  EXPECT_DOUBLE_EQ(told.models[0].attainment, 2. / 3);
  EXPECT_DOUBLE_EQ(told.models[0].mean_latency_s, 1.5);
  EXPECT_DOUBLE_EQ(told.models[1].mean_latency_s, 1);
  // What is there from the start takes as long as the last pass.
  EXPECT_DOUBLE_EQ(predict(evaluator, placement, std::vector<Arrival>{{0, 0}}, 0).duration_s, 1);
}

TEST(Predict, CountsSwapsByGroup) {
  SearchProblem problem = two_models();
  problem.memory.device_bytes = 10;
  problem.memory.swapping = {.host_bytes = 100, .ranks_per_node = 3, .page_bytes = 1, .link_bytes_per_s = 100};
  PlacementEvaluator evaluator(problem);
  const std::vector<Arrival> arrivals = {{0, 1}, {5, 0}, {10, 1}};
  const Prediction told = predict(evaluator, {{{1, 2}, {0}}, {{1, 1}, {0, 1}}}, arrivals, 20);
  EXPECT_DOUBLE_EQ(told.groups[0].swaps_per_s, 0);
  EXPECT_DOUBLE_EQ(told.groups[1].swaps_per_s, .05);  // b is not there at first, and stays there
  EXPECT_DOUBLE_EQ(told.swaps_per_s, .05);
  EXPECT_DOUBLE_EQ(told.link_bytes_per_s, .5);  // its ten bytes
}

TEST(PlacementFileOfAPlan, IsWhatAJobReads) {
  const SearchProblem problem = two_models();
  PlacementEvaluator evaluator(problem);
  const ModelPlacement placement = {{{1, 2}, {1, 0}}, {{1, 1}, {0}}};
  const auto groups = group_specs(placement, problem.models);
  const Prediction told = predict(evaluator, placement, std::vector<Arrival>{{0, 0}}, 10);
  TemporaryFolder folder;
  const std::string text = placement_file(groups, problem.models, told, "one request");
  const Placement read = read_placement(folder.write("placement.json", text));
  EXPECT_EQ(to_string(read.groups), "tp 1 x pp 2: a, b (3 + 1 layers); tp 1 x pp 1: a");
  EXPECT_THAT(read.models, IsEmpty());
  EXPECT_THAT(text, HasSubstr("\"basis\": \"one request\""));
  EXPECT_THAT(text, HasSubstr("\"attainment\": 1.0"));
  // Names of files need not be UTF-8.
  EXPECT_THAT(placement_file(groups, problem.models, told, "trace \xff"), HasSubstr("\"trace \xef\xbf\xbd\""));
}

TEST(PlacementTable, HasALineAGroup) {
  const SearchProblem problem = two_models();
  PlacementEvaluator evaluator(problem);
  const ModelPlacement placement = {{{1, 2}, {0, 1}}, {{1, 1}, {0}}};
  const Prediction told = predict(evaluator, placement, std::vector<Arrival>{{0, 0}}, 10);
  const std::string table = placement_table(group_specs(placement, problem.models), told);
  EXPECT_EQ(std::ranges::count(table, '\n'), 3);
  EXPECT_THAT(table, HasSubstr("0-1    1 x 2        10 B"));
  EXPECT_THAT(table, HasSubstr("a, b\n"));
}

TEST(AsJob, LeavesGroupsWithModelsTheLargerOnesFirst) {
  const SearchProblem problem = two_models();
  EXPECT_THAT(as_job(problem, {{{1, 1}, {}}, {{1, 2}, {0}}, {{1, 1}, {}}}), ElementsAre(PlacedGroup{{1, 2}, {0}}));
  EXPECT_THAT(as_job(problem, {{{1, 1}, {1}}, {{1, 2}, {0}}, {{1, 1}, {0}}}),
              ElementsAre(PlacedGroup{{1, 2}, {0}}, PlacedGroup{{1, 1}, {1}}, PlacedGroup{{1, 1}, {0}}));
}

// Groups move to other nodes only where these have room.
TEST(AsJob, KeepsTheOrderThatHostMemoryAsksFor) {
  SearchProblem problem = two_models();
  problem.ranks = 4;
  problem.memory.swapping = {.host_bytes = 5, .ranks_per_node = 2, .page_bytes = 1, .link_bytes_per_s = 1};
  const PlacedGroup a{{1, 1}, {0}}, b{{1, 1}, {1}}, idle{{1, 1}, {}}, both{{1, 2}, {0}};
  EXPECT_THAT(as_job(problem, {a, a, both}), ElementsAre(both, a, a));
  expect_error(ExitCode::kConfig, "host memory is too small", [&] { as_job(problem, {a, idle, b}); });
  // The second node has one rank, and too little memory for the whole model.
  problem.ranks = 3;
  problem.memory.swapping->host_bytes = 8;
  EXPECT_THAT(as_job(problem, {a, both}), ElementsAre(a, both));
}

// Few requests ask for "rare", and its place would serve more of the others.
SearchProblem with_rare_model() {
  SearchProblem problem;
  for (const char* id : {"a", "b", "rare"}) problem.models.push_back({id, {{{1, 1}, even_stages(1, 1, 10)}}});
  problem.slo_s.assign(3, 1.5f);
  problem.ranks = 3;
  problem.memory.device_bytes = 10;
  for (int i = 0; i < 100; ++i) problem.arrivals.push_back({.4 * i, static_cast<std::uint32_t>(i % 2)});
  return problem;
}

TEST(SearchPlacement, LeavesNoModelOutWhereAllAreToBePlaced) {
  SearchProblem problem = with_rare_model();
  PlacementEvaluator any(problem);
  EXPECT_EQ(replicas_by_model(problem, search_placement(any).placement)[2], 0);
  problem.complete = true;
  PlacementEvaluator complete(problem);
  EXPECT_THAT(replicas_by_model(problem, search_placement(complete).placement), ElementsAre(1, 1, 1));
}

TEST(SearchPlacement, ReplicasHaveInCommonWhatTheyMust) {
  const Experiment experiment{6, 8, 5, 16, 4};
  SearchProblem problem = problem_of(experiment, {with_guessed_shapes(bert_6_7b()), with_guessed_shapes(bert_1_3b())});
  problem.arrivals = skewed_arrivals(experiment, 50, 0);
  problem.complete = true;
  for (const ReplicaRule rule : {ReplicaRule::kSameTp, ReplicaRule::kSameShape}) {
    problem.replicas = rule;
    PlacementEvaluator evaluator(problem);
    // Groups of many shapes, as no enumeration of equal ones has them.
    const auto mixed = fast_greedy(evaluator, {{2, 1}, {1, 2}, {1, 1}, {1, 1}, {2, 1}});
    for (const ModelPlacement& placement :
         {improve(evaluator, mixed).placement, search_placement(evaluator).placement}) {
      EXPECT_TRUE(fits(problem, placement));
      std::map<std::uint32_t, GroupShape> shapes;
      for (const PlacedGroup& group : placement) {
        for (const std::uint32_t model : group.models) {
          const GroupShape& other = shapes.emplace(model, group.shape).first->second;
          EXPECT_EQ(other.tp, group.shape.tp);
          EXPECT_TRUE(rule == ReplicaRule::kSameTp || other == group.shape);
        }
      }
    }
  }
}

TEST(Fits, IsWhatMemoryAndReplicasAllow) {
  SearchProblem problem = two_models();
  EXPECT_TRUE(fits(problem, {{{1, 1}, {0, 1}}, {{1, 2}, {0, 1}}}));
  problem.replicas = ReplicaRule::kSameShape;
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}, {{1, 2}, {0, 1}}}));
  problem.memory.device_bytes = 19;
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}}));
  EXPECT_TRUE(fits(problem, {{{1, 2}, {0, 1}}, {{1, 1}, {}}}));
}

TEST(Fits, PagesThatAreNotFullTakeWholeFrames) {
  SearchProblem problem = two_models();
  problem.memory.device_bytes = 20;
  EXPECT_TRUE(fits(problem, {{{1, 1}, {0, 1}}}));
  problem.models[0].shapes.at({1, 1}).frame_bytes = {11};
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}}));
}

// Two models of 10 bytes on each node, of which 7 lie in host memory.
TEST(Fits, CodedPagesLieCodedInHostMemory) {
  SearchProblem problem = two_models();
  problem.memory.swapping = {.host_bytes = 14, .ranks_per_node = 1, .page_bytes = 1, .link_bytes_per_s = 1};
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}}));
  for (ModelProfile& model : problem.models) {
    ShapeProfile& profile = model.shapes.at({1, 1});
    ASSERT_EQ(profile.stage_bytes.front(), 10);
    profile.link_bytes = {7};
  }
  EXPECT_TRUE(fits(problem, {{{1, 1}, {0, 1}}}));
  problem.memory.swapping->host_bytes = 13;
  EXPECT_FALSE(fits(problem, {{{1, 1}, {0, 1}}}));
}

}  // namespace
}  // namespace computron
