#include "computron/placement/exact_search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "computron/placement/group_search.h"
#include "src/placement/makespan_bound.h"
#include "tests/placement/search_support.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;

struct Size {
  std::uint32_t models;
  int ranks;
  std::uint32_t most_requests;  // of a model
};

// Batches of models of unlike size and time, some of which need more than a rank.
SearchProblem random_problem(std::mt19937& random, Size size) {
  SearchProblem problem;
  for (std::uint32_t m = 0; m < size.models; ++m) {
    ModelProfile model{"m", {}};
    const double time = 1 + random() % 9, gb = 1 + random() % 4;
    for (const GroupShape shape : {GroupShape{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}}) {
      const double overhead = 1 + .05 * shape.pp + .15 * (shape.tp - 1);
      model.shapes[shape] = even_stages(shape.pp, overhead * time / shape.ranks(), gb / shape.ranks() * 1e9);
    }
    problem.models.push_back(model);
    const std::uint32_t requests = 1 + static_cast<std::uint32_t>(random()) % size.most_requests;
    problem.arrivals.insert(problem.arrivals.end(), requests, Arrival{0, m});
  }
  problem.slo_s.assign(size.models, 1);
  problem.ranks = size.ranks;
  problem.memory.device_bytes = 1'000'000'000 + std::int64_t{3'000'000'000} * size.models / size.ranks;
  problem.stage_penalty = problem.constant_s = 0;
  problem.objective = Objective::kMakespan;
  problem.complete = true;
  return problem;
}

// Every placement of all models, one after the other.
class EveryPlacement {
 public:
  explicit EveryPlacement(PlacementEvaluator& evaluator) : evaluator_(evaluator) {}

  double least_makespan_s() {
    divide(evaluator_.problem().ranks, GroupShape{1, 1});
    return least_s_;
  }
  std::size_t count() const { return found_.size(); }

 private:
  void divide(int ranks, GroupShape least) {
    if (!placement_.empty()) fill(0);
    for (const auto& [shape, profile] : evaluator_.problem().models[0].shapes) {
      if (shape < least || shape.ranks() > ranks) continue;
      placement_.push_back({shape, {}});
      divide(ranks - shape.ranks(), shape);
      placement_.pop_back();
    }
  }
  void fill(std::size_t group) {
    if (group == placement_.size()) return look();
    const auto models = static_cast<std::uint32_t>(evaluator_.problem().models.size());
    for (std::uint32_t subset = 1; subset < 1u << models; ++subset) {
      placement_[group].models.clear();
      for (std::uint32_t m = 0; m < models; ++m) {
        if ((subset >> m & 1) != 0) placement_[group].models.push_back(m);
      }
      fill(group + 1);
    }
  }
  void look() {
    const ModelPlacement placement = job_order(placement_);
    found_.insert(placement);
    const auto replicas = replicas_by_model(evaluator_.problem(), placement);
    if (std::ranges::count(replicas, 0) > 0 || !fits(evaluator_.problem(), placement)) return;
    least_s_ = std::min(least_s_, evaluator_.evaluate(placement).result.makespan_s);
  }

  PlacementEvaluator& evaluator_;
  ModelPlacement placement_;
  double least_s_ = std::numeric_limits<double>::infinity();
  std::set<ModelPlacement> found_;
};

TEST(SearchExactly, EqualsLookingAtEveryPlacement) {
  std::mt19937 random(2);
  double looked_at = 0, possible = 0;
  for (int instance = 0; instance < 40; ++instance) {
    SearchProblem problem = random_problem(random, {.models = 3, .ranks = 3, .most_requests = 12});
    problem.replicas = std::vector{ReplicaRule::kAny, ReplicaRule::kSameTp, ReplicaRule::kSameShape}[instance % 3];
    if (instance % 4 == 3) {
      problem.memory.swapping = {
          .host_bytes = 16'000'000'000, .ranks_per_node = 2, .page_bytes = 1 << 24, .link_bytes_per_s = 1e10};
    }
    PlacementEvaluator evaluator(problem);
    EveryPlacement every(evaluator);
    const double least_s = every.least_makespan_s();
    const std::size_t simulations = evaluator.simulations();
    if (least_s > 1e9) continue;  // no room
    const ExactAnswer answer = search_exactly(evaluator);
    EXPECT_TRUE(answer.proven);
    EXPECT_DOUBLE_EQ(answer.best.result.makespan_s, least_s) << instance;
    EXPECT_EQ(answer.placements, evaluator.simulations() - simulations);
    looked_at += static_cast<double>(answer.placements);
    possible += possible_placements(problem);
    EXPECT_DOUBLE_EQ(evaluator.evaluate(answer.best.placement).result.makespan_s, least_s);
  }
  EXPECT_LT(looked_at, possible / 4);  // each instance is small: what list scheduling finds is many of them
}

// What the simulator says of any placement.
TEST(MakespanBound, IsAboveNoPlacement) {
  std::mt19937 random(4);
  double ratios = 0;
  constexpr int kInstances = 300;
  for (int instance = 0; instance < kInstances; ++instance) {
    SearchProblem problem = random_problem(random, {.models = 4, .ranks = 6, .most_requests = 12});
    for (auto& [shape, profile] : problem.models[0].shapes) profile.stage_s[0] *= 2;  // uneven stages
    problem.stage_penalty = .01;
    const MakespanBound bound(problem, {0, 1, 2, 3});
    std::vector<MakespanBound::Group> groups;
    ModelPlacement placement;
    for (int ranks = 6; ranks > 0;) {
      auto shape = problem.models[0].shapes.begin();
      std::advance(shape, static_cast<std::ptrdiff_t>(random() % problem.models[0].shapes.size()));
      if (shape->first.ranks() > ranks) continue;
      ranks -= shape->first.ranks();
      const ModelSetMask set = ranks == 0 ? 15 : 1 + static_cast<ModelSetMask>(random()) % 15;
      groups.push_back({shape->first, set});
      PlacedGroup& placed = placement.emplace_back(PlacedGroup{shape->first, {}});
      for (std::uint32_t m = 0; m < 4; ++m) {
        if ((set >> m & 1) != 0) placed.models.push_back(m);
      }
    }
    PlacementEvaluator evaluator(problem);
    const double makespan_s = evaluator.evaluate(placement).result.makespan_s;
    EXPECT_LE(bound.of(groups), makespan_s * (1 + 1e-12)) << instance;
    ratios += bound.of(groups) / makespan_s;
  }
  EXPECT_GT(ratios / kInstances, .8);  // it says something
}

// "1x2: 0 1; 1x1: 2"
std::string text_of(const ModelPlacement& placement) {
  std::string text;
  for (const PlacedGroup& group : placement) {
    text += fmt::format("{}{}x{}:", text.empty() ? "" : "; ", group.shape.tp, group.shape.pp);
    for (const std::uint32_t model : group.models) text += fmt::format(" {}", model);
  }
  return text;
}

// Batches that are all known at the start: the search's makespan is within 5 % of the least there is.
void expect_search_near_exact(Size size, int instances, unsigned seed) {
  std::mt19937 random(seed);
  int compared = 0;
  for (int instance = 0; instance < instances; ++instance) {
    PlacementEvaluator evaluator(random_problem(random, size));
    ExactAnswer exact;
    try {
      exact = search_exactly(evaluator);
    } catch (const ConfigError&) {
      continue;  // no room for all models
    }
    ASSERT_TRUE(exact.proven);
    const ScoredPlacement found = search_placement(evaluator);
    EXPECT_LE(found.result.makespan_s, 1.05 * exact.best.result.makespan_s)
        << instance << " of " << seed << ": " << text_of(found.placement) << " and not "
        << text_of(exact.best.placement);
    EXPECT_GE(evaluator.evaluate(job_order(found.placement)).result.makespan_s,
              exact.best.result.makespan_s * (1 - 1e-12))
        << instance;
    ++compared;
  }
  EXPECT_GT(compared, instances / 2);
}

TEST(SearchExactly, TheSearchIsWithinFivePercentOfItOnFourRanks) {
  expect_search_near_exact({.models = 4, .ranks = 4, .most_requests = 20}, 60, 6);
  expect_search_near_exact({.models = 5, .ranks = 3, .most_requests = 20}, 30, 7);
  expect_search_near_exact({.models = 4, .ranks = 2, .most_requests = 20}, 30, 8);
}

TEST(SearchExactly, TheSearchIsWithinFivePercentOfItOnEightRanks) {
  expect_search_near_exact({.models = 3, .ranks = 8, .most_requests = 20}, 12, 9);
}

TEST(PossiblePlacements, AreCounted) {
  std::mt19937 random(2);
  SearchProblem problem = random_problem(random, {.models = 2, .ranks = 4, .most_requests = 3});
  problem.memory.device_bytes = 100'000'000'000;
  PlacementEvaluator evaluator(problem);
  EveryPlacement every(evaluator);
  every.least_makespan_s();
  EXPECT_EQ(possible_placements(problem), static_cast<double>(every.count()));
  problem.models.resize(1);
  problem.models[0].shapes = {{{3, 1}, even_stages(1, 1, 1)}};
  EXPECT_EQ(possible_placements(problem), 1);
  problem.ranks = 6;
  EXPECT_EQ(possible_placements(problem), 2);
  problem.ranks = 2;
  EXPECT_EQ(possible_placements(problem), 0);
}

TEST(JobOrder, HasLargerGroupsFirst) {
  EXPECT_THAT(job_order({{{1, 1}, {2, 0}}, {{2, 1}, {1}}, {{1, 1}, {0, 1}}}),
              ElementsAre(PlacedGroup{{2, 1}, {1}}, PlacedGroup{{1, 1}, {0, 1}}, PlacedGroup{{1, 1}, {0, 2}}));
}

TEST(SearchExactly, ModelsWithoutRoomAreLeftOut) {
  std::mt19937 random(2);
  SearchProblem problem = random_problem(random, {.models = 3, .ranks = 2, .most_requests = 4});
  for (auto& [shape, profile] : problem.models[1].shapes) profile.stage_bytes.assign(shape.pp, 100'000'000'000);
  PlacementEvaluator evaluator(problem);
  const ExactAnswer answer = search_exactly(evaluator);
  EXPECT_EQ(replicas_by_model(problem, answer.best.placement)[1], 0);
  EXPECT_GT(replicas_by_model(problem, answer.best.placement)[0], 0);
  EXPECT_GT(replicas_by_model(problem, answer.best.placement)[2], 0);
  for (const auto m : {0, 2}) {
    for (auto& [shape, profile] : problem.models[m].shapes) profile.stage_bytes.assign(shape.pp, 3'000'000'000);
  }
  problem.ranks = 1;
  PlacementEvaluator full(problem);
  expect_error(ExitCode::kConfig, "no room together", [&] { search_exactly(full); });
}

TEST(SearchExactly, EndsWithTheBestSoFar) {
  std::mt19937 random(2);
  const SearchProblem problem = random_problem(random, {.models = 4, .ranks = 4, .most_requests = 20});
  PlacementEvaluator all(problem);
  const ExactAnswer whole = search_exactly(all);
  PlacementEvaluator evaluator(problem, {.stop = [] { return true; }, .better = {}});
  const ExactAnswer answer = search_exactly(evaluator);
  EXPECT_FALSE(answer.proven);
  EXPECT_FALSE(answer.best.placement.empty());
  EXPECT_LT(answer.placements, whole.placements);
  EXPECT_GE(answer.best.result.makespan_s, whole.best.result.makespan_s);
}

TEST(SearchExactly, WhatItIsNotForIsNamed) {
  std::mt19937 random(2);
  const auto refused = [](const SearchProblem& problem, const char* why) {
    PlacementEvaluator evaluator(problem);
    expect_error(ExitCode::kUsage, why, [&] { search_exactly(evaluator); });
  };
  SearchProblem problem = random_problem(random, {.models = 3, .ranks = 3, .most_requests = 4});
  problem.objective = Objective::kMeanLatency;
  refused(problem, "the makespan only");
  problem.objective = Objective::kMakespan;
  problem.arrivals.back().time_s = 1;
  refused(problem, "all there from the start");
  refused(random_problem(random, {.models = 10, .ranks = 16, .most_requests = 4}), "are too many to look at");
  refused(random_problem(random, {.models = 40, .ranks = 2, .most_requests = 4}), "are too many to look at");
}

}  // namespace
}  // namespace computron
