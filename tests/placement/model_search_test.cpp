#include "computron/placement/model_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/placement/search_support.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

std::vector<GroupShape> groups(std::size_t count, GroupShape shape) { return std::vector<GroupShape>(count, shape); }

struct Row {
  Experiment experiment;
  double attainment;
};

// Selective replication, fitted to `train` and played with the 200 s of seed 0.
void expect_rows(const std::vector<Row>& rows, const std::vector<ModelProfile>& kinds, double train_s,
                 std::uint32_t train_seed, double tolerance) {
  for (const Row& row : rows) {
    SearchProblem problem = problem_of(row.experiment, kinds);
    problem.arrivals = skewed_arrivals(row.experiment, train_s, train_seed);
    PlacementEvaluator evaluator(std::move(problem));
    const ModelPlacement placement = selective_replication(evaluator).placement;
    EXPECT_NEAR(reported(evaluator, placement, skewed_arrivals(row.experiment, 200, 0)), row.attainment, tolerance)
        << row.experiment.models << " models, " << row.experiment.gpus << " GPUs, SLO " << row.experiment.slo_scale
        << ", " << row.experiment.rate_per_s << "/s, CV " << row.experiment.cv;
  }
}

// AlpaServe's table of its simulator beside its real system: 24 BERT-2.6B on 16 V100, placed with 750 s of other seeds.
TEST(SelectiveReplication, GivesAlpaServesAlignmentTable) {
  std::vector<Row> rows;
  for (const auto& [scale, attainment] :
       {std::pair(.5, 0.), std::pair(1., 0.), std::pair(1.5, .302), std::pair(2., .368), std::pair(3., .485),
        std::pair(4., .578), std::pair(5., .640), std::pair(6., .689), std::pair(8., .771), std::pair(10., .826)}) {
    rows.push_back({{24, 16, scale, 40, 4}, attainment});
  }
  expect_rows(rows, {bert_2_6b()}, 750, 1234, .002);
}

// AlpaServe's section 6.3, three sizes of BERT: placed with the requests that are served.
TEST(SelectiveReplication, GivesAlpaServesRowsOfThreeSizes) {
  const std::vector<Row> rows = {{{42, 16, 5, 64, 4}, .438},
                                 {{42, 24, 5, 64, 4}, .607},
                                 {{42, 32, 5, 64, 4}, .711},
                                 {{42, 40, 5, 64, 4}, .785},
                                 {{42, 48, 5, 64, 4}, .842},
                                 {{42, 56, 5, 64, 4}, .882},
                                 {{42, 64, 5, 64, 4}, .908},
                                 {{42, 24, 1, 64, 4}, 0},
                                 {{42, 24, 2, 64, 4}, .343},
                                 {{42, 24, 4, 64, 4}, .543},
                                 {{42, 24, 8, 64, 4}, .703},
                                 {{42, 24, 12, 64, 4}, .785},
                                 {{42, 24, 16, 64, 4}, .831},
                                 {{42, 24, 5, 1, 4}, .899},
                                 {{42, 24, 5, 8, 4}, .784},
                                 {{42, 24, 5, 16, 4}, .746},
                                 {{42, 24, 5, 24, 4}, .720},
                                 {{42, 24, 5, 32, 4}, .702},
                                 {{42, 24, 5, 48, 4}, .643},
                                 {{42, 24, 5, 80, 4}, .564},
                                 {{42, 24, 5, 64, .5}, .895},
                                 {{42, 24, 5, 64, 1}, .893},
                                 {{42, 24, 5, 64, 2}, .833},
                                 {{42, 24, 5, 64, 6}, .426},
                                 {{12, 24, 5, 64. * 12 / 42, 4}, .949},
                                 {{18, 24, 5, 64. * 18 / 42, 4}, .867},
                                 {{24, 24, 5, 64. * 24 / 42, 4}, .792},
                                 {{30, 24, 5, 64. * 30 / 42, 4}, .725},
                                 {{36, 24, 5, 64. * 36 / 42, 4}, .661},
                                 {{48, 24, 5, 64. * 48 / 42, 4}, .561}};
  expect_rows(rows, {bert_6_7b(), bert_2_6b(), bert_1_3b()}, 200, 0, .01);
}

TEST(SelectiveReplication, GivesAlpaServesRowsOfSixModels) {
  const std::vector<Row> rows = {
      {{60, 8, 5, 64, 4}, .264},  {{60, 24, 5, 64, 4}, .583}, {{60, 32, 5, 64, 4}, .690},  {{60, 40, 5, 64, 4}, .776},
      {{60, 56, 5, 64, 4}, .880}, {{60, 72, 5, 64, 4}, .935}, {{60, 32, 1, 64, 4}, 0},     {{60, 32, 2, 64, 4}, .390},
      {{60, 32, 4, 64, 4}, .632}, {{60, 32, 8, 64, 4}, .807}, {{60, 32, 12, 64, 4}, .874}, {{60, 32, 20, 64, 4}, .933},
      {{60, 32, 5, 64, 1}, .951}, {{60, 32, 5, 64, 2}, .907}, {{60, 32, 5, 64, 6}, .535},  {{60, 32, 5, 64, 8}, .398},
      {{60, 32, 5, 8, 4}, .832},  {{60, 32, 5, 32, 4}, .788}, {{60, 32, 5, 96, 4}, .625},  {{60, 32, 5, 128, 4}, .597}};
  expect_rows(rows, {bert_6_7b(), moe_5_3b(), bert_2_6b(), moe_2_4b(), bert_1_3b(), moe_1_3b()}, 200, 0, .011);
}

// Four groups of four tensor-parallel ranks, the other column of the alignment table. Ten models fit into 13 GiB.
TEST(FastGreedy, GivesAlpaServesTensorParallelRows) {
  for (const auto& [scale, attainment] : {std::pair(.5, .333), std::pair(1., .532), std::pair(1.5, .647)}) {
    const Experiment experiment{24, 16, scale, 40, 4};
    ModelProfile model = bert_2_6b();
    model.shapes[{4, 1}] = even_stages(1, .0886, 1.3958e9);
    SearchProblem problem = problem_of(experiment, {model});
    problem.arrivals = skewed_arrivals(experiment, 750, 1234);
    PlacementEvaluator evaluator(std::move(problem));
    const ModelPlacement placement = fast_greedy(evaluator, groups(4, {4, 1})).placement;
    EXPECT_EQ(placement[0].models.size(), 10u);
    EXPECT_NEAR(reported(evaluator, placement, skewed_arrivals(experiment, 200, 0)), attainment, .005) << scale;
  }
}

SearchProblem four_models(double gib, double rate, double cv, float slo_s, double duration_s) {
  SearchProblem problem;
  problem.models = std::vector<ModelProfile>(4, unit_test_model());
  problem.slo_s.assign(4, slo_s);
  problem.arrivals = make_arrivals(GammaGaps{cv}, power_law_rates(4, 4 * rate, 0), {0, duration_s}, 0);
  problem.ranks = 4;
  problem.memory.device_bytes = static_cast<std::int64_t>(gib * (1 << 30));
  return problem;
}

// The first two of AlpaServe's unit tests; the third one is in group_search_test.cpp.
TEST(BeamSearch, ReplicatesEachModelTwice) {
  PlacementEvaluator evaluator(four_models(4.5, 5, 1, 1, 300));
  const auto best = beam_search(evaluator, groups(4, {1, 1}), 3);
  std::vector<int> replicas(4);
  for (const PlacedGroup& group : best.placement) {
    EXPECT_EQ(group.models.size(), 2u);
    for (const std::uint32_t model : group.models) ++replicas[model];
  }
  EXPECT_THAT(replicas, ElementsAre(2, 2, 2, 2));
}

TEST(BeamSearch, FillsBothPipelines) {
  PlacementEvaluator evaluator(four_models(4.5, 5, 1, 1, 300));
  const auto best = beam_search(evaluator, groups(2, {1, 2}), 1);
  for (const PlacedGroup& group : best.placement) EXPECT_THAT(group.models, UnorderedElementsAre(0, 1, 2, 3));
}

TEST(BeamSearch, AWiderBeamFindsWhatIsAsGoodOrBetter) {
  PlacementEvaluator evaluator(four_models(2.5, 4, 8, .4f, 300));
  const auto greedy = fast_greedy(evaluator, groups(2, {1, 2}));
  EXPECT_GE(beam_search(evaluator, groups(2, {1, 2}), 3).score, greedy.score);
}

TEST(RoundRobin, PlacesModelsInTurnWhereTheyFit) {
  const PlacementEvaluator evaluator(four_models(4.5, 1, 1, 1, 1));
  EXPECT_THAT(round_robin(evaluator, groups(3, {1, 1})),
              ElementsAre(PlacedGroup{{1, 1}, {0, 3}}, PlacedGroup{{1, 1}, {1, 0}}, PlacedGroup{{1, 1}, {2, 1}}));
}

TEST(UniformReplication, GivesEachGroupTheNextModels) {
  const PlacementEvaluator evaluator(four_models(4.5, 1, 1, 1, 1));
  EXPECT_THAT(uniform_replication(evaluator, groups(4, {1, 1})),
              ElementsAre(PlacedGroup{{1, 1}, {0, 1}}, PlacedGroup{{1, 1}, {1, 2}}, PlacedGroup{{1, 1}, {2, 3}},
                          PlacedGroup{{1, 1}, {3, 0}}));
}

TEST(FastGreedy, NeverExceedsMemoryAndNeverPlacesAModelTwiceInAGroup) {
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    SearchProblem problem = four_models(1 + static_cast<double>(random() % 6), 3, 4, .4f, 20);
    const std::int64_t bytes = problem.memory.device_bytes;
    PlacementEvaluator evaluator(std::move(problem));
    for (const PlacedGroup& group : fast_greedy(evaluator, {{1, 1}, {1, 2}, {1, 1}}).placement) {
      std::int64_t used = 0;
      auto models = group.models;
      std::ranges::sort(models);
      EXPECT_EQ(std::ranges::adjacent_find(models), models.end());
      for (const std::uint32_t m : models) used += evaluator.problem().models[m].find(group.shape)->rank_bytes();
      EXPECT_LE(used, bytes);
    }
  }
}

SearchProblem swapping_problem(std::int64_t host_bytes) {
  SearchProblem problem = four_models(1.9, .3, 1, 5, 300);
  problem.memory.swapping = {
      .host_bytes = host_bytes, .ranks_per_node = 2, .page_bytes = 1 << 24, .link_bytes_per_s = 20e9};
  return problem;
}

// Of 2 GB models not one fits 1.9 GiB; with swapping a group has as many as its node's memory holds.
TEST(FastGreedy, WithSwappingHostMemoryIsTheLimit) {
  SearchProblem resident = swapping_problem(1);
  resident.memory.swapping.reset();
  resident.memory.device_bytes = 1'900'000'000;
  PlacementEvaluator without(resident);
  EXPECT_EQ(replicas_of(selective_replication(without).placement), 0u);
  SearchProblem roomy = swapping_problem(40'000'000'000);
  roomy.memory.device_bytes = resident.memory.device_bytes;
  PlacementEvaluator with(roomy);
  const auto best = selective_replication(with);
  EXPECT_GT(best.result.attainment(), .99);
  EXPECT_GT(best.result.swaps, 0u);
}

// Of 2 GB models a node of two ranks with 4 GB holds two: both ranks may serve both, since they share them.
TEST(FastGreedy, ReplicasOfANodeShareItsMemory) {
  SearchProblem crowded = swapping_problem(2'000'000'000);
  std::erase_if(crowded.arrivals, [](const Arrival& a) { return a.model > 1; });
  for (Arrival& a : crowded.arrivals) a.time_s /= 50;  // too many for one replica
  crowded.slo_s.assign(4, .5f);
  PlacementEvaluator evaluator(crowded);
  const auto best = fast_greedy(evaluator, groups(2, {1, 1}));
  std::set<std::uint32_t> there;
  for (const PlacedGroup& group : best.placement) there.insert(group.models.begin(), group.models.end());
  EXPECT_EQ(there, (std::set<std::uint32_t>{0, 1}));
  EXPECT_GT(replicas_of(best.placement), 2u);
}

TEST(Improve, NeverMakesItWorse) {
  for (const double cv : {1., 8.}) {
    PlacementEvaluator evaluator(four_models(2.5, 4, cv, .4f, 200));
    const auto start = evaluator.evaluate(round_robin(evaluator, groups(4, {1, 1})));
    const auto better = improve(evaluator, start);
    EXPECT_GE(better.score, start.score);
  }
}

TEST(Improve, FindsTheModelThatIsMissing) {
  SearchProblem problem = four_models(2.5, 1, 1, 1, 200);
  problem.models.assign(4, single_gpu_model("m", .1, 2));
  PlacementEvaluator evaluator(problem);
  const ModelPlacement wrong = {{{1, 1}, {0}}, {{1, 1}, {0}}, {{1, 1}, {1}}, {{1, 1}, {2}}};
  const auto better = improve(evaluator, evaluator.evaluate(wrong));
  EXPECT_THAT(normal_form(better.placement), ElementsAre(PlacedGroup{{1, 1}, {0}}, PlacedGroup{{1, 1}, {1}},
                                                         PlacedGroup{{1, 1}, {2}}, PlacedGroup{{1, 1}, {3}}));
}

TEST(PlacementEvaluator, ScoresAreAlpaServes) {
  SimulationResult result;
  result.requests = {10, 10};
  result.good = {10, 5};
  result.latency_s = {4, 2};
  result.makespan_s = 7;
  EXPECT_DOUBLE_EQ(score_of(Objective::kAttainment, result, 3), .75 - .3 / 1e4 + 3e-6);
  result.good = {10, 10};
  EXPECT_DOUBLE_EQ(score_of(Objective::kMeanLatency, result, 3), -.3);
  EXPECT_DOUBLE_EQ(score_of(Objective::kMakespan, result, 3), -7 - .3 / 1e4);
}

TEST(PlacementEvaluator, BadProblemsAreNamed) {
  const auto refused = [](const std::string& part, const auto& spoil) {
    SearchProblem problem = swapping_problem(1);
    spoil(problem);
    expect_error(ExitCode::kUsage, part, [&] { PlacementEvaluator evaluator(problem); });
  };
  refused("no models", [](auto& p) { p.models.clear(); });
  refused("0 ranks", [](auto& p) { p.ranks = 0; });
  refused("one objective a model", [](auto& p) { p.slo_s.pop_back(); });
  refused("ranks have 0 bytes", [](auto& p) { p.memory.device_bytes = 0; });
  refused("links copy 0 bytes", [](auto& p) { p.memory.swapping->link_bytes_per_s = 0; });
  refused("nodes have 0 ranks", [](auto& p) { p.memory.swapping->ranks_per_node = 0; });
  refused("pages have 0 bytes", [](auto& p) { p.memory.swapping->page_bytes = 0; });
  refused("no model 7", [](auto& p) { p.wanted = {7}; });
  refused("no model 4", [](auto& p) { p.arrivals = {{0, 4}}; });
  refused("order of time", [](auto& p) { p.arrivals = {{1, 0}, {0, 0}}; });
  refused("a stage takes", [](auto& p) { p.models[0].shapes[{1, 1}].stage_s = {-1}; });
}

}  // namespace
}  // namespace computron
