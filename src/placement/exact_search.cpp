#include "computron/placement/exact_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "computron/base/error.h"
#include "src/placement/listed_placements.h"
#include "src/placement/makespan_bound.h"
#include "src/placement/memory_use.h"

namespace computron {
namespace {

constexpr double kNoneYet = std::numeric_limits<double>::infinity();
constexpr double kMostPasses = 5e9;        // about two minutes, were none left out
constexpr double kPassesAPlacement = 200;  // that a simulation takes the time of, whatever it serves
constexpr std::size_t kMostModels = 31;
constexpr double kRounding = 1e-12;

using Division = std::vector<GroupShape>;

// Wanted, and there is room for each alone.
std::vector<std::uint32_t> placeable_models(const SearchProblem& problem, const std::vector<std::uint32_t>& wanted) {
  std::vector<std::uint32_t> models;
  for (const std::uint32_t model : wanted) {
    if (!shapes_with_room(problem, model).empty()) models.push_back(model);
  }
  return models;
}

std::vector<std::uint32_t> wanted_models(const SearchProblem& problem) {
  if (!problem.wanted.empty()) return problem.wanted;
  std::vector<std::uint32_t> all;
  for (std::uint32_t m = 0; m < problem.models.size(); ++m) all.push_back(m);
  return all;
}

// Larger ones first.
struct BySize {
  bool operator()(const GroupShape& a, const GroupShape& b) const {
    return std::pair(-a.ranks(), a) < std::pair(-b.ranks(), b);
  }
};

class ExactSearch {
 public:
  explicit ExactSearch(PlacementEvaluator& evaluator)
      : evaluator_(evaluator),
        problem_(evaluator.problem()),
        models_(placeable_models(problem_, evaluator.wanted())),
        bound_(problem_, models_) {
    for (std::size_t m = 0; m < models_.size(); ++m) {
      for (const GroupShape& shape : shapes_with_room(problem_, models_[m])) of_shape_[shape] |= ModelSetMask{1} << m;
    }
  }

  ExactAnswer run() && {
    Division begun;
    add_divisions(of_shape_.begin(), problem_.ranks, begun);
    std::ranges::stable_sort(divisions_, {}, &std::pair<double, Division>::first);
    for (const auto& [bound_s, division] : divisions_) {
      if (evaluator_.stopped() && best_s_ < kNoneYet) break;
      for (ModelPlacement& listed : listed_placements(problem_, models_, division)) look_at(std::move(listed));
    }
    answer_.proven = true;
    for (const auto& [bound_s, division] : divisions_) {
      if (is_worse(bound_s)) break;
      groups_.clear();
      branch(division);
    }
    return std::move(answer_);
  }

 private:
  using Shapes = std::map<GroupShape, ModelSetMask, BySize>;

  // All divisions of at most so many ranks into groups of the shapes from `shape` on.
  void add_divisions(Shapes::const_iterator shape, int ranks, Division& begun) {
    if (!begun.empty()) divisions_.emplace_back(bound_s_of(begun), begun);
    for (; shape != of_shape_.end(); ++shape) {
      if (shape->first.ranks() > ranks) continue;
      begun.push_back(shape->first);
      add_divisions(shape, ranks - shape->first.ranks(), begun);
      begun.pop_back();
    }
  }

  // Any models may be in any group.
  double bound_s_of(const Division& division) const {
    std::vector<MakespanBound::Group> groups;
    for (const GroupShape& shape : division) groups.push_back({shape, of_shape_.at(shape)});
    return bound_.of(groups);
  }

  bool is_worse(double bound_s) const { return bound_s * (1 + kRounding) >= best_s_; }

  void look_at(ModelPlacement placement) {
    placement = job_order(std::move(placement));
    if (!fits(problem_, placement)) return;
    ++answer_.placements;
    ScoredPlacement scored = evaluator_.evaluate(std::move(placement));
    if (scored.result.makespan_s >= best_s_) return;
    best_s_ = scored.result.makespan_s;
    answer_.best = std::move(scored);
    if (evaluator_.watch().better) evaluator_.watch().better(answer_.best);
  }

  // Models for the next group of the division: of equal groups the first has the largest set, as numbers go.
  void branch(const Division& division) {
    const std::size_t g = groups_.size();
    if (g == division.size()) return look_at(placement_of_groups());
    const bool is_repeated = g > 0 && division[g] == division[g - 1];
    const ModelSetMask possible = of_shape_.at(division[g]);
    for (ModelSetMask set = is_repeated ? groups_.back().may_have : possible; set > 0; set = (set - 1) & possible) {
      if (evaluator_.stopped()) answer_.proven = false;
      if (!answer_.proven) return;
      groups_.push_back({division[g], set});
      if (is_promising(division)) branch(division);
      groups_.pop_back();
    }
  }

  bool is_promising(const Division& division) const {
    std::vector<MakespanBound::Group> groups = groups_;
    for (std::size_t g = groups.size(); g < division.size(); ++g) {
      groups.push_back({division[g], of_shape_.at(division[g])});
    }
    ModelSetMask reached = 0;
    for (const MakespanBound::Group& group : groups) reached |= group.may_have;
    if (reached != (ModelSetMask{1} << models_.size()) - 1 || is_worse(bound_.of(groups))) return false;
    // With swapping it depends on the other groups' places whether there is room.
    return problem_.memory.swapping.has_value() || fits(problem_, placement_of_groups());
  }

  ModelPlacement placement_of_groups() const {
    ModelPlacement placement;
    for (const MakespanBound::Group& group : groups_) {
      PlacedGroup& placed = placement.emplace_back(PlacedGroup{group.shape, {}});
      for (std::size_t m = 0; m < models_.size(); ++m) {
        if ((group.may_have >> m & 1) != 0) placed.models.push_back(models_[m]);
      }
    }
    return placement;
  }

  PlacementEvaluator& evaluator_;
  const SearchProblem& problem_;
  std::vector<std::uint32_t> models_;
  MakespanBound bound_;
  Shapes of_shape_;                                     // models that a group of the shape may have
  std::vector<std::pair<double, Division>> divisions_;  // each with its bound
  std::vector<MakespanBound::Group> groups_;            // that have their models, of the division at hand
  double best_s_ = kNoneYet;
  ExactAnswer answer_;
};

void check(const PlacementEvaluator& evaluator) {
  const SearchProblem& problem = evaluator.problem();
  const auto bad = [](const std::string& why) { throw Error(ExitCode::kUsage, "exact search: " + why); };
  if (problem.objective != Objective::kMakespan) bad("it is for the makespan only");
  if (std::ranges::any_of(problem.arrivals, [](const Arrival& arrival) { return arrival.time_s > 0; })) {
    bad("it is for requests that are all there from the start");
  }
  if (problem.models.size() > kMostModels) bad(fmt::format("{} models are too many to look at", problem.models.size()));
  const double placements = possible_placements(problem);
  if (placements == 0) bad("no model has a profile that so many ranks can serve");
  const double passes = placements * (kPassesAPlacement + static_cast<double>(problem.arrivals.size()));
  if (passes <= kMostPasses) return;
  bad(
      fmt::format("{:.3g} placements of {} requests are too many to look at: fewer models or ranks, or the search that "
                  "is not exact",
                  placements, problem.arrivals.size()));
}

}  // namespace

ModelPlacement job_order(ModelPlacement placement) {
  placement = normal_form(std::move(placement));
  std::ranges::stable_sort(placement, std::ranges::greater{}, [](const auto& group) { return group.shape.ranks(); });
  return placement;
}

// Of k equal groups that may each have one of n sets there are C(n + k - 1, k).
double possible_placements(const SearchProblem& problem) {
  std::map<GroupShape, int> models;  // that a group of the shape may have
  for (const std::uint32_t model : wanted_models(problem)) {
    for (const GroupShape& shape : shapes_with_room(problem, model)) ++models[shape];
  }
  std::vector<double> ways(static_cast<std::size_t>(problem.ranks) + 1);  // [ranks that are used]
  ways[0] = 1;
  for (const auto& [shape, count] : models) {
    const auto size = static_cast<std::size_t>(shape.ranks());
    const double sets = std::exp2(count) - 1;
    for (std::size_t used = ways.size(); used-- > 0;) {
      double more = 1;
      for (std::size_t k = 1; k * size <= used; ++k) {
        more *= (sets + static_cast<double>(k) - 1) / static_cast<double>(k);
        if (ways[used - k * size] > 0) ways[used] += more * ways[used - k * size];
      }
    }
  }
  double all = 0;
  for (std::size_t used = 1; used < ways.size(); ++used) all += ways[used];
  return all;
}

ExactAnswer search_exactly(PlacementEvaluator& evaluator) {
  check(evaluator);
  ExactAnswer answer = ExactSearch(evaluator).run();
  if (answer.best.placement.empty() && answer.proven) {
    throw ConfigError("exact search: the models have no room together: more memory is needed");
  }
  return answer;
}

}  // namespace computron
