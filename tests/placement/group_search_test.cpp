#include "computron/placement/group_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "computron/placement/model_search.h"
#include "tests/placement/search_support.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::UnorderedElementsAre;

const ModelSearch kBeam = [](PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  return beam_search(evaluator, groups, 1);
};

TEST(AllGroups, AreEachDivisionOnce) {
  EXPECT_EQ(all_groups(4).size(), 9u);
  EXPECT_THAT(all_groups(4), Contains(std::vector<GroupShape>{{1, 1}, {1, 1}, {2, 1}}));
  const auto of_eight = all_groups(8);
  for (const auto& groups : of_eight) {
    int sum = 0;
    for (const GroupShape& shape : groups) sum += shape.ranks();
    EXPECT_EQ(sum, 8);
    EXPECT_EQ(std::ranges::count(of_eight, groups), 1);
  }
}

TEST(EqualGroups, UseAllRanksAndLeftOverOnesAsPipelines) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const auto& groups : equal_groups(ranks)) {
      int sum = 0;
      for (const GroupShape& shape : groups) {
        sum += shape.ranks();
        EXPECT_LE(shape.tp, 4);
        EXPECT_LE(shape.pp, 8);
      }
      EXPECT_EQ(sum, ranks);
    }
  }
  EXPECT_THAT(equal_groups(7), Contains(std::vector<GroupShape>{{2, 2}, {1, 2}, {1, 1}}));
  EXPECT_THAT(equal_groups(2), UnorderedElementsAre(std::vector<GroupShape>{{1, 1}, {1, 1}},
                                                    std::vector<GroupShape>{{1, 2}}, std::vector<GroupShape>{{2, 1}}));
}

// AlpaServe's unit test: one pipeline of four stages beats all else where requests come in bursts.
TEST(SearchGroups, FindsThePipelineOfAllFour) {
  SearchProblem problem;
  problem.models = std::vector<ModelProfile>(4, unit_test_model());
  problem.slo_s.assign(4, .4f);
  problem.arrivals = make_arrivals(GammaGaps{8}, power_law_rates(4, 16, 0), {0, 1875}, 0);
  problem.ranks = 4;
  problem.memory.device_bytes = static_cast<std::int64_t>(2.5 * (1 << 30));
  PlacementEvaluator evaluator(problem);
  for (const ModelSearch& fill : {kBeam, ModelSearch(fast_greedy)}) {
    EXPECT_THAT(search_groups(evaluator, fill).placement, ElementsAre(PlacedGroup{{1, 4}, {0, 1, 2, 3}}));
  }
  EXPECT_THAT(search_placement(evaluator).placement, ElementsAre(PlacedGroup{{1, 4}, {0, 1, 2, 3}}));
}

TEST(BestDivisions, AreTheBestOfEachWhatTheirOrderIs) {
  SearchProblem problem;
  problem.models = std::vector<ModelProfile>(4, unit_test_model());
  problem.slo_s.assign(4, .4f);
  problem.arrivals = make_arrivals(GammaGaps{4}, power_law_rates(4, 12, 0), {0, 300}, 0);
  problem.ranks = 4;
  problem.memory.device_bytes = 2'700'000'000;
  PlacementEvaluator evaluator(problem);
  EXPECT_TRUE(evaluator.best_divisions(5).empty());
  const ScoredPlacement found = search_placement(evaluator);
  const auto best = evaluator.best_divisions(100);
  ASSERT_GT(best.size(), 3u);
  EXPECT_EQ(best[0].placement, found.placement);
  EXPECT_TRUE(std::ranges::is_sorted(best, std::ranges::greater{}, &ScoredPlacement::score));
  std::vector<std::vector<GroupShape>> divisions;
  for (const ScoredPlacement& one : best) {
    EXPECT_EQ(evaluator.evaluate(one.placement).score, one.score);
    auto& shapes = divisions.emplace_back();
    for (const PlacedGroup& group : one.placement) shapes.push_back(group.shape);
    std::ranges::sort(shapes);
    EXPECT_EQ(std::ranges::count(divisions, shapes), 1);
  }
  evaluator.evaluate({{best[0].placement[0].shape, {}}});  // a worse one of the best division
  EXPECT_EQ(evaluator.best_divisions(1)[0].placement, best[0].placement);
  EXPECT_EQ(evaluator.best_divisions(2).size(), 2u);
  EXPECT_EQ(evaluator.best_divisions(2)[1].placement, best[1].placement);
}

TEST(LatencyBuckets, AreAlpaServes) {
  const auto buckets_of = [](const std::vector<ModelProfile>& models) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t m = 0; m < models.size(); ++m) all.push_back(m);
    return latency_buckets(models, all);
  };
  EXPECT_THAT(buckets_of({bert_6_7b(), bert_2_6b(), bert_1_3b()}), ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
  EXPECT_THAT(buckets_of({bert_6_7b(), moe_5_3b(), bert_2_6b(), moe_2_4b(), bert_1_3b(), moe_1_3b()}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3, 4, 5)));
}

TEST(BucketSplits, LeaveWholeNodesAndAreFew) {
  EXPECT_THAT(bucket_splits(3, {1, 1}), UnorderedElementsAre(ElementsAre(1, 2), ElementsAre(2, 1)));
  EXPECT_THAT(bucket_splits(11, {1, 1}),
              UnorderedElementsAre(ElementsAre(1, 10), ElementsAre(2, 9), ElementsAre(3, 8)));
  EXPECT_EQ(bucket_splits(16, {1, 1}).size(), 15u);
  EXPECT_TRUE(bucket_splits(1, {1, 1}).empty());
  const auto many = bucket_splits(64, {1, 1, 2});
  EXPECT_LT(many.size(), 400u);
  for (const auto& split : many) EXPECT_NEAR(split[2], 32, .1 * 64 + 1e-9);
}

// Ten parts of 64 ranks can be chosen in 2 · 10^10 ways.
TEST(BucketSplits, AreNoMoreThanCanBeLookedAt) {
  const auto splits = bucket_splits(64, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  ASSERT_FALSE(splits.empty());
  EXPECT_LE(splits.size(), 20'000u);
  for (const auto& split : splits) EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), 64);
}

// Few of the ways to begin can be completed where the shares are as different as these, and where none can be.
TEST(BucketSplits, AreFoundWithoutTryingWhatCannotBeCompleted) {
  std::vector<double> work;
  for (int bucket = 0; bucket < 16; ++bucket) work.push_back(std::pow(1.45, bucket));
  const auto splits = bucket_splits(512, work);
  ASSERT_FALSE(splits.empty());
  for (const auto& split : splits) EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), 512);
  EXPECT_TRUE(bucket_splits(20, std::vector<double>(21, 1)).empty());
  EXPECT_FALSE(bucket_splits(509, std::vector<double>(40, 1)).empty());
}

// Fitted to one set of requests, played with another one.
TEST(SearchPlacement, IsNeverWorseThanEqualGroupsNorSelectiveReplication) {
  for (const Experiment& experiment : {Experiment{12, 8, 5, 16, 4}, Experiment{12, 8, 2, 24, 2}}) {
    std::vector<ModelProfile> kinds;
    for (const ModelProfile& kind : {bert_6_7b(), bert_2_6b(), bert_1_3b()}) kinds.push_back(with_guessed_shapes(kind));
    SearchProblem problem = problem_of(experiment, kinds);
    problem.arrivals = skewed_arrivals(experiment, 100, 0);
    PlacementEvaluator evaluator(problem);
    const auto ours = search_placement(evaluator);
    EXPECT_GE(ours.score, search_buckets(evaluator, fast_greedy).score);
    EXPECT_GE(ours.score, search_groups(evaluator, fast_greedy).score);
    EXPECT_GE(ours.score, selective_replication(evaluator).score);
    EXPECT_EQ(ranks_of(ours.placement), experiment.gpus);
    const auto unseen = skewed_arrivals(experiment, 100, 1234);
    EXPECT_GT(evaluator.simulate(ours.placement, unseen).attainment(),
              evaluator.simulate(selective_replication(evaluator).placement, unseen).attainment());
  }
}

TEST(SearchPlacement, SwappingServesWhatDoesNotFitOtherwise) {
  const Experiment experiment{12, 4, 5, 2, 4};
  SearchProblem problem = problem_of(experiment, {with_guessed_shapes(bert_6_7b()), with_guessed_shapes(bert_2_6b())});
  problem.arrivals = skewed_arrivals(experiment, 200, 0);
  PlacementEvaluator resident(problem);
  problem.memory.swapping = {
      .host_bytes = std::int64_t{64} << 30, .ranks_per_node = 4, .page_bytes = 1 << 24, .link_bytes_per_s = 12e9};
  PlacementEvaluator swapping(problem);
  const auto without = search_placement(resident), with = search_placement(swapping);
  EXPECT_GT(with.result.attainment(), without.result.attainment() + .05);
  EXPECT_GT(with.result.swaps, 0u);
}

TEST(SearchPlacement, EndsWithTheBestSoFarAndReportsWhatIsBetter) {
  const Experiment experiment{12, 8, 5, 16, 4};
  SearchProblem problem = problem_of(experiment, {with_guessed_shapes(bert_6_7b()), with_guessed_shapes(bert_1_3b())});
  problem.arrivals = skewed_arrivals(experiment, 50, 0);
  int asked = 0;
  std::vector<double> scores;
  PlacementEvaluator evaluator(problem, {.stop = [&asked] { return ++asked > 40; },
                                         .better = [&scores](const ScoredPlacement& s) { scores.push_back(s.score); }});
  const auto best = search_placement(evaluator);
  EXPECT_LT(evaluator.simulations(), 60u);
  EXPECT_GT(best.result.attainment(), 0);
  ASSERT_FALSE(scores.empty());
  EXPECT_TRUE(std::ranges::is_sorted(scores));
  EXPECT_EQ(scores.back(), best.score);
}

TEST(SearchPlacement, ModelsThatNoGroupCanServeAreNamed) {
  SearchProblem problem;
  problem.models = {{"large", {{{4, 1}, even_stages(1, 1, 1)}}}};
  problem.slo_s = {1};
  problem.ranks = 2;
  problem.memory.device_bytes = 100;
  PlacementEvaluator evaluator(problem);
  expect_error(ExitCode::kUsage, "no model has a profile", [&] { search_placement(evaluator); });
}

// A bucket of models that need four ranks cannot be searched on fewer.
TEST(SearchPlacement, ModelsThatNeedManyRanksGetThem) {
  SearchProblem problem;
  problem.models = {single_gpu_model("small", 1, 1), {"large", {{{4, 1}, even_stages(1, 9, 10e9)}}}};
  problem.slo_s = {5, 45};
  problem.ranks = 8;
  problem.memory.device_bytes = kGpuBytes;
  problem.arrivals = make_arrivals(GammaGaps{1}, std::vector<double>{2, .1}, {0, 500}, 0);
  problem.complete = true;
  PlacementEvaluator evaluator(problem);
  const auto best = search_placement(evaluator);
  EXPECT_GT(best.result.attainment(), .99);
  EXPECT_THAT(best.placement, Contains(PlacedGroup{{4, 1}, {1}}));
}

// Latencies are alike, and no division of 16 ranks into equal groups serves both.
TEST(SearchPlacement, ModelsWithoutACommonShapeGetRanksOfTheirOwn) {
  SearchProblem problem;
  problem.models = {single_gpu_model("a", .40, 1), {"b", {{{4, 1}, even_stages(1, .42, 1e9)}}}};
  problem.slo_s = {4, 4};
  problem.ranks = 16;
  problem.memory.device_bytes = kGpuBytes;
  problem.complete = true;
  for (const double rate_per_s : {1., .001}) {  // with next to no work a model needs its ranks nevertheless
    problem.arrivals = make_arrivals(GammaGaps{1}, std::vector<double>{1, rate_per_s}, {0, 100}, 0);
    for (const bool swaps : {false, true}) {
      problem.memory.swapping = std::nullopt;
      if (swaps) {
        problem.memory.swapping = {
            .host_bytes = kGpuBytes, .ranks_per_node = 16, .page_bytes = 1 << 24, .link_bytes_per_s = 12e9};
      }
      PlacementEvaluator evaluator(problem);
      const auto replicas = replicas_by_model(problem, search_placement(evaluator).placement);
      EXPECT_GE(replicas[0], 1);
      EXPECT_GE(replicas[1], 1);
    }
  }
}

// A shape in common is of use only where there is memory for it.
TEST(SearchPlacement, ModelsWhoseCommonShapeHasNoRoomGetRanksOfTheirOwn) {
  SearchProblem problem;
  problem.models = {single_gpu_model("a", .40, 1), single_gpu_model("b", .42, 20)};
  problem.models[1].shapes[{4, 1}] = even_stages(1, .2, 5e9);
  problem.slo_s = {4, 4};
  problem.ranks = 16;
  problem.memory.device_bytes = kGpuBytes;
  problem.arrivals = make_arrivals(GammaGaps{1}, std::vector<double>{1, 1}, {0, 100}, 0);
  problem.complete = true;
  PlacementEvaluator evaluator(problem);
  EXPECT_FALSE(evaluator.lacks_models(search_placement(evaluator).placement));
}

// As from the first moment on, so later.
TEST(SearchPlacement, PlacesEveryModelBeforeItStops) {
  SearchProblem problem = problem_of({6, 8, 5, 16, 4}, {bert_2_6b(), bert_1_3b()});
  problem.models.push_back({"large", {{{4, 1}, even_stages(1, .3, 1e9)}}});
  problem.models.push_back({"nowhere", {{{32, 1}, even_stages(1, .3, 1e9)}}});
  problem.slo_s.assign(problem.models.size(), 1);
  problem.arrivals = make_arrivals(GammaGaps{4}, std::vector<double>(8, 1), {0, 50}, 0);
  problem.complete = true;
  for (const int ranks : {8, 16}) {
    problem.ranks = ranks;
    for (const int free : {0, 1, 3, 10}) {
      int asked = 0;
      PlacementEvaluator evaluator(problem, {.stop = [&] { return ++asked > free; }, .better = {}});
      const auto best = search_placement(evaluator);
      const auto replicas = replicas_by_model(problem, best.placement);
      EXPECT_THAT(std::vector<int>(replicas.begin(), replicas.end() - 1), testing::Each(testing::Ge(1)))
          << ranks << " ranks, " << free;
      EXPECT_EQ(replicas.back(), 0);
      EXPECT_TRUE(fits(problem, best.placement));
      EXPECT_LT(evaluator.simulations(), 60u);
    }
  }
}

// AlpaServe's limits are those of its machines.
TEST(SearchPlacement, TriesEveryShapeThatHasAProfile) {
  SearchProblem problem;
  problem.models = {{"large", {{{8, 1}, even_stages(1, 1, 10e9)}, {{3, 2}, even_stages(2, 2, 10e9)}}}};
  problem.slo_s = {1.5f};
  problem.memory.device_bytes = kGpuBytes;
  problem.arrivals = make_arrivals(GammaGaps{1}, std::vector<double>{.5}, {0, 100}, 0);
  for (const int ranks : {8, 16}) {
    problem.ranks = ranks;
    PlacementEvaluator evaluator(problem);
    EXPECT_THAT(search_placement(evaluator).placement,
                ElementsAreArray(ModelPlacement(static_cast<std::size_t>(ranks / 8), PlacedGroup{{8, 1}, {0}})));
  }
  problem.slo_s = {5};
  problem.ranks = 6;
  for (const GroupShape shape : {GroupShape{3, 2}, {1, 6}, {6, 1}}) {
    problem.models[0].shapes = {{shape, even_stages(shape.pp, 1, 10e9)}};
    PlacementEvaluator evaluator(problem);
    EXPECT_THAT(search_placement(evaluator).placement, ElementsAre(PlacedGroup{shape, {0}}));
  }
}

// Every division of the ranks into groups of the shapes there are, with every choice of models in each.
class AllPlacements {
 public:
  explicit AllPlacements(PlacementEvaluator& evaluator) : evaluator_(evaluator) {}

  double best_score() {
    divide(evaluator_.problem().ranks, {1, 1});
    return best_;
  }

 private:
  void divide(int ranks, GroupShape least) {
    if (ranks == 0) return fill(0);
    for (const auto& [shape, profile] : evaluator_.problem().models[0].shapes) {
      if (shape < least || shape.ranks() > ranks) continue;
      placement_.push_back({shape, {}});
      divide(ranks - shape.ranks(), shape);
      placement_.pop_back();
    }
  }
  void fill(std::size_t group) {
    if (group == placement_.size()) {
      best_ = std::max(best_, evaluator_.evaluate(placement_).score);
      return;
    }
    const auto models = static_cast<std::uint32_t>(evaluator_.problem().models.size());
    for (std::uint32_t subset = 1; subset < 1u << models; ++subset) {
      std::int64_t bytes = 0;
      placement_[group].models.clear();
      for (std::uint32_t m = 0; m < models; ++m) {
        if ((subset >> m & 1) == 0) continue;
        placement_[group].models.push_back(m);
        bytes += evaluator_.problem().models[m].find(placement_[group].shape)->rank_bytes();
      }
      if (bytes <= evaluator_.problem().memory.device_bytes) fill(group + 1);
    }
  }

  PlacementEvaluator& evaluator_;
  ModelPlacement placement_;
  double best_ = -std::numeric_limits<double>::infinity();
};

// Batches that are all known at the start: their makespan, or the mean latency, is within 5 % of the best of all
// placements.
TEST(SearchPlacement, IsWithinFivePercentOfTheBestForBatches) {
  std::mt19937 random(11);
  for (int job = 0; job < 60; ++job) {
    SearchProblem problem;
    for (std::uint32_t m = 0; m < 3; ++m) {
      ModelProfile model{"m", {}};
      const double time = 1 + random() % 9, gb = 1 + random() % 3;
      for (const GroupShape shape : {GroupShape{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}}) {
        const double overhead = 1 + .05 * shape.pp + .15 * (shape.tp - 1);
        model.shapes[shape] = even_stages(shape.pp, overhead * time / shape.ranks(), gb / shape.ranks() * 1e9);
      }
      problem.models.push_back(model);
      for (std::uint32_t i = 0; i < 3 + random() % 10; ++i) problem.arrivals.push_back({0, m});
    }
    problem.slo_s.assign(3, 1);
    problem.ranks = 4;
    problem.memory.device_bytes = 3'500'000'000;
    problem.stage_penalty = problem.constant_s = 0;
    for (const Objective objective : {Objective::kMakespan, Objective::kMeanLatency}) {
      problem.objective = objective;
      PlacementEvaluator evaluator(problem);
      const double best = AllPlacements(evaluator).best_score();
      EXPECT_GE(search_placement(evaluator).score, 1.05 * best)
          << "job " << job << ", objective " << static_cast<int>(objective);
    }
  }
}

TEST(Clockwork, ReplacesModelsAtNoCostBetweenWindows) {
  // Two models, room for one: each has its requests in a window of its own.
  SearchProblem problem;
  problem.models = std::vector<ModelProfile>(2, single_gpu_model("m", .1, 10));
  problem.slo_s = {1, 1};
  problem.memory.device_bytes = kGpuBytes;
  problem.arrivals = {{1, 0}, {2, 0}, {11, 1}, {12, 1}, {25, 0}};
  PlacementEvaluator evaluator(problem);
  EXPECT_EQ(selective_replication(evaluator).result.attainment(), .6);
  const auto switched = clockwork(problem, 10);
  EXPECT_EQ(switched.attainment(), 1);
  EXPECT_THAT(switched.requests, ElementsAre(3, 2));
  EXPECT_EQ(clockwork(problem, 100).attainment(), .6);
  expect_error(ExitCode::kUsage, "longer than 0 s", [&] { clockwork(problem, 0); });
  // A window is shorter than a double can tell: one request each.
  for (Arrival& arrival : problem.arrivals) arrival.time_s += 1e9;
  EXPECT_EQ(clockwork(problem, 1e-9).attainment(), 1);
}

}  // namespace
}  // namespace computron
