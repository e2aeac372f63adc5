#include "computron/placement/model_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "src/placement/memory_use.h"

namespace computron {
namespace {

ModelPlacement empty_groups(const std::vector<GroupShape>& shapes) {
  ModelPlacement placement;
  for (const GroupShape& shape : shapes) placement.push_back({shape, {}});
  return placement;
}

// AlpaServe's order of groups, which decides ties. Otherwise a group stays in its place: which nodes it is on depends
// on it; and where all requests of a batch come at once, ties are many.
ModelPlacement renamed(const SearchProblem& problem, ModelPlacement placement) {
  const bool in_order = problem.objective == Objective::kAttainment && !problem.memory.swapping;
  return in_order ? normal_form(std::move(placement)) : placement;
}

// How much the requests of a model suffer: how many are not served; or, where all are, the time by which they are later
// than alone. Where a placement is to be complete a model without a group suffers most.
double suffering(const SearchProblem& problem, const SimulationResult& result, std::uint32_t model, int replicas) {
  if (problem.complete && replicas == 0) return std::numeric_limits<double>::infinity();
  const double requests = result.requests[model], good = result.good[model];
  if (problem.objective == Objective::kAttainment) return requests * (1 - good / (requests + 1e-6));
  if (good < requests) return 1e12 * requests;
  float alone_s = std::numeric_limits<float>::infinity();
  for (const auto& [shape, profile] : problem.models[model].shapes) alone_s = std::min(alone_s, profile.latency_s());
  return result.latency_s[model] - good * static_cast<double>(alone_s);
}

// As AlpaServe has it, those that suffer alike in reverse order.
std::vector<std::uint32_t> by_suffering(const PlacementEvaluator& evaluator, const ScoredPlacement& scored) {
  const auto replicas = replicas_by_model(evaluator.problem(), scored.placement);
  std::vector<std::uint32_t> models = evaluator.wanted();
  std::ranges::stable_sort(
      models, {}, [&](std::uint32_t m) { return suffering(evaluator.problem(), scored.result, m, replicas[m]); });
  std::ranges::reverse(models);
  return models;
}

std::vector<std::size_t> by_load(const SimulationResult& result) {
  std::vector<std::size_t> groups(result.dispatched.size());
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  std::ranges::stable_sort(groups, {}, [&](std::size_t g) { return result.dispatched[g]; });
  return groups;
}

struct Addition {
  std::size_t group;
  std::uint32_t model;
};

// The first group in order for which some model in order fits.
std::optional<Addition> next_addition(const PlacementEvaluator& evaluator, const ScoredPlacement& scored,
                                      const MemoryUse& memory) {
  const auto models = by_suffering(evaluator, scored);
  for (const std::size_t group : by_load(scored.result)) {
    for (const std::uint32_t model : models) {
      if (memory.can_add(group, model)) return Addition{group, model};
    }
  }
  return std::nullopt;
}

void keep_better(ScoredPlacement& best, const ScoredPlacement& other) {
  if (other.score > best.score) best = other;
}

// With each model that is in no group in one of those with fewest models, and a model in each group that has none,
// as far as they fit: what a search that is stopped can still do without a simulation a replica.
ModelPlacement completed(const PlacementEvaluator& evaluator, ModelPlacement placement) {
  const SearchProblem& problem = evaluator.problem();
  MemoryUse memory(problem, placement);
  const auto replicas = replicas_by_model(problem, placement);
  const auto add_if_it_fits = [&](std::size_t group, std::uint32_t model) {
    if (!memory.can_add(group, model)) return false;
    memory.add(group, model);
    placement[group].models.push_back(model);
    return true;
  };
  std::vector<std::size_t> groups(placement.size());
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  for (const std::uint32_t model : evaluator.wanted()) {
    if (replicas[model] > 0) continue;
    std::ranges::stable_sort(groups, {}, [&](std::size_t g) { return placement[g].models.size(); });
    std::ranges::find_if(groups, [&](std::size_t g) { return add_if_it_fits(g, model); });
  }
  const auto& models = evaluator.wanted();
  for (std::size_t g = 0; g < placement.size(); ++g) {
    for (std::size_t i = 0; i < models.size() && placement[g].models.empty(); ++i) {
      add_if_it_fits(g, models[(g + i) % models.size()]);
    }
  }
  return placement;
}

// Those siblings of the model that are in no group, into `group`, as far as they fit.
void add_siblings(const PlacementEvaluator& evaluator, std::uint32_t model, std::size_t group,
                  ModelPlacement& placement) {
  const SearchProblem& problem = evaluator.problem();
  const auto replicas = replicas_by_model(problem, placement);
  MemoryUse memory(problem, placement);
  for (const std::uint32_t sibling : evaluator.siblings()[model]) {
    const bool is_wanted = std::ranges::count(evaluator.wanted(), sibling) > 0;
    if (!is_wanted || replicas[sibling] > 0 || !memory.can_add(group, sibling)) continue;
    memory.add(group, sibling);
    placement[group].models.push_back(sibling);
  }
}

// The best on the way from `placement` to one that nothing can be added to; stopped, one with all models nevertheless.
// `together`: siblings come with the first of them.
ScoredPlacement filled(PlacementEvaluator& evaluator, ModelPlacement placement, bool together = false) {
  const SearchProblem& problem = evaluator.problem();
  ScoredPlacement at = evaluator.evaluate(renamed(problem, std::move(placement))), best = at;
  // With swapping a replica may cost more than it gives: so many rounds without a gain are enough.
  const std::size_t patience = problem.memory.swapping ? at.placement.size() + evaluator.wanted().size()
                                                       : std::numeric_limits<std::size_t>::max();
  for (std::size_t in_vain = 0; in_vain < patience && !evaluator.stopped();) {
    const auto addition = next_addition(evaluator, at, MemoryUse(problem, at.placement));
    if (!addition) break;
    at.placement[addition->group].models.push_back(addition->model);
    if (together) add_siblings(evaluator, addition->model, addition->group, at.placement);
    at = evaluator.evaluate(renamed(problem, std::move(at.placement)));
    in_vain = at.score > best.score ? 0 : in_vain + 1;
    keep_better(best, at);
  }
  if (evaluator.stopped() && evaluator.lacks_models(best.placement)) {
    keep_better(best, evaluator.evaluate(renamed(problem, completed(evaluator, best.placement))));
  }
  return best;
}

// Additions of one replica to `from`.
std::vector<ModelPlacement> expansions(const PlacementEvaluator& evaluator, const ModelPlacement& from) {
  const MemoryUse memory(evaluator.problem(), from);
  std::vector<ModelPlacement> result;
  for (std::size_t group = 0; group < from.size(); ++group) {
    for (const std::uint32_t model : evaluator.wanted()) {
      if (!memory.can_add(group, model)) continue;
      ModelPlacement next = from;
      next[group].models.push_back(model);
      result.push_back(renamed(evaluator.problem(), std::move(next)));
    }
  }
  return result;
}

// `placement` with `model` in `group`, in place of as many models as it takes, the ones with most other replicas first
// and of these the one that was added last. Nothing if it cannot be.
std::optional<ModelPlacement> with_model(const SearchProblem& problem, ModelPlacement placement, std::size_t group,
                                         std::uint32_t model) {
  auto replicas = replicas_by_model(problem, placement);
  auto& models = placement[group].models;
  while (!MemoryUse(problem, placement).can_add(group, model)) {
    if (models.empty()) return std::nullopt;
    auto spare = models.begin();
    for (auto m = models.begin(); m != models.end(); ++m) spare = replicas[*m] >= replicas[*spare] ? m : spare;
    --replicas[*spare];
    models.erase(spare);
  }
  models.push_back(model);
  return renamed(problem, std::move(placement));
}

// The same in place of each one of the group's models, where that is enough.
void add_exchanges(const SearchProblem& problem, const ModelPlacement& placement, std::size_t group,
                   std::uint32_t model, std::vector<ModelPlacement>& result) {
  for (std::size_t i = 0; i < placement[group].models.size(); ++i) {
    ModelPlacement next = placement;
    next[group].models.erase(next[group].models.begin() + static_cast<std::ptrdiff_t>(i));
    if (!MemoryUse(problem, next).can_add(group, model)) continue;
    next[group].models.push_back(model);
    result.push_back(renamed(problem, std::move(next)));
  }
}

// With one of the models that suffer most in one of the groups that work least.
std::vector<ModelPlacement> with_other_models(const PlacementEvaluator& evaluator, const ScoredPlacement& from) {
  constexpr std::size_t kModels = 4, kGroups = 8;
  auto models = by_suffering(evaluator, from);
  auto groups = by_load(from.result);
  models.resize(std::min(models.size(), kModels));
  groups.resize(std::min(groups.size(), kGroups));
  std::vector<ModelPlacement> result;
  for (const std::uint32_t model : models) {
    for (const std::size_t group : groups) {
      if (std::ranges::find(from.placement[group].models, model) != from.placement[group].models.end()) continue;
      auto placement = with_model(evaluator.problem(), from.placement, group, model);
      if (placement) result.push_back(std::move(*placement));
      if (!evaluator.problem().memory.swapping) {
        add_exchanges(evaluator.problem(), from.placement, group, model, result);
      }
    }
  }
  return result;
}

// Without one of the replicas of a model that has others, from the groups that work most: each request goes to the
// group that is free first, even if another one would be faster.
std::vector<ModelPlacement> with_fewer_models(const PlacementEvaluator& evaluator, const ScoredPlacement& from) {
  constexpr std::size_t kMost = 64;
  const auto replicas = replicas_by_model(evaluator.problem(), from.placement);
  auto groups = by_load(from.result);
  std::ranges::reverse(groups);
  std::vector<ModelPlacement> result;
  for (const std::size_t g : groups) {
    for (std::size_t i = 0; i < from.placement[g].models.size() && result.size() < kMost; ++i) {
      if (replicas[from.placement[g].models[i]] == 1) continue;
      ModelPlacement placement = from.placement;
      placement[g].models.erase(placement[g].models.begin() + static_cast<std::ptrdiff_t>(i));
      result.push_back(renamed(evaluator.problem(), std::move(placement)));
    }
  }
  return result;
}

// Models of `from` that are among `siblings`, or that are not.
std::vector<std::uint32_t> of_group(const PlacedGroup& from, const std::vector<std::uint32_t>& siblings, bool among) {
  std::vector<std::uint32_t> models;
  std::ranges::copy_if(from.models, std::back_inserter(models),
                       [&](std::uint32_t model) { return std::ranges::binary_search(siblings, model) == among; });
  return models;
}

// With siblings that are in two groups in one of them, alone or in exchange for as many others.
void add_gathered(const SearchProblem& problem, const ModelPlacement& from, const std::vector<std::uint32_t>& siblings,
                  std::size_t left, std::size_t entered, std::vector<ModelPlacement>& result) {
  const auto moved = of_group(from[left], siblings, true);
  if (moved.empty() || of_group(from[entered], siblings, true).empty()) return;
  auto others = of_group(from[entered], siblings, false);
  others.resize(std::min(others.size(), moved.size()));
  for (const bool exchange : {true, false}) {
    if (exchange && others.empty()) continue;
    ModelPlacement placement = from;
    const auto move = [&placement](const std::vector<std::uint32_t>& models, std::size_t a, std::size_t b) {
      for (const std::uint32_t model : models) {
        std::erase(placement[a].models, model);
        if (std::ranges::count(placement[b].models, model) == 0) placement[b].models.push_back(model);
      }
    };
    move(moved, left, entered);
    if (exchange) move(others, entered, left);
    placement = renamed(problem, std::move(placement));
    if (fits(problem, placement)) result.push_back(std::move(placement));
  }
}

// With siblings together: what they have in common is in memory once, and copied once.
std::vector<ModelPlacement> with_siblings_together(const PlacementEvaluator& evaluator, const ScoredPlacement& from) {
  constexpr std::size_t kMost = 64;
  std::vector<ModelPlacement> result;
  const ModelPlacement& placement = from.placement;
  for (std::uint32_t model = 0; model < evaluator.siblings().size(); ++model) {
    const auto& siblings = evaluator.siblings()[model];
    if (siblings.empty() || siblings.front() != model) continue;  // once for all of them
    for (std::size_t a = 0; a < placement.size(); ++a) {
      for (std::size_t b = 0; b < placement.size() && result.size() < kMost; ++b) {
        if (a != b) add_gathered(evaluator.problem(), placement, siblings, a, b, result);
      }
    }
  }
  return result;
}

// The shapes that the ranks of one group, or of two, could have instead.
std::vector<std::vector<GroupShape>> other_shapes(const GroupShape& shape) {
  std::vector<std::vector<GroupShape>> result;
  const auto [tp, pp] = shape;
  if (pp % 2 == 0) {
    result.push_back(std::vector<GroupShape>(2, {tp, pp / 2}));
    result.push_back({{2 * tp, pp / 2}});
  }
  if (tp % 2 == 0) {
    result.push_back(std::vector<GroupShape>(2, {tp / 2, pp}));
    result.push_back({{tp / 2, 2 * pp}});
  }
  return result;
}

// `groups` in place of `count` groups from `first` on: with all of the models of those that fit, each beginning with
// another part of them.
ModelPlacement with_groups(const SearchProblem& problem, const ModelPlacement& from, std::size_t first,
                           std::size_t count, const std::vector<GroupShape>& groups) {
  const auto at = [](auto& list, std::size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
  std::vector<std::uint32_t> models;
  for (std::size_t g = first; g < first + count; ++g) {
    models.insert(models.end(), from[g].models.begin(), from[g].models.end());
  }
  ModelPlacement placement(from.begin(), at(from, first));
  for (const GroupShape& shape : groups) placement.push_back({shape, {}});
  placement.insert(placement.end(), at(from, first + count), from.end());
  MemoryUse memory(problem, placement);
  for (std::size_t g = first; g < first + groups.size(); ++g) {
    for (std::size_t i = 0; i < models.size(); ++i) {
      const std::uint32_t model = models[(i + (g - first) * models.size() / groups.size()) % models.size()];
      if (!memory.can_add(g, model)) continue;
      memory.add(g, model);
      placement[g].models.push_back(model);
    }
  }
  return placement;
}

// With a group of another shape, a group divided in two, or two groups of one shape that are neighbours made one.
std::vector<ModelPlacement> with_other_groups(const PlacementEvaluator& evaluator, const ScoredPlacement& scored) {
  const SearchProblem& problem = evaluator.problem();
  const ModelPlacement& from = scored.placement;
  std::vector<ModelPlacement> result;
  for (std::size_t g = 0; g < from.size(); ++g) {
    const GroupShape shape = from[g].shape;
    for (const auto& groups : other_shapes(shape)) result.push_back(with_groups(problem, from, g, 1, groups));
    if (g + 1 == from.size() || from[g + 1].shape != shape) continue;
    result.push_back(with_groups(problem, from, g, 2, {{shape.tp, 2 * shape.pp}}));
    result.push_back(with_groups(problem, from, g, 2, {{2 * shape.tp, shape.pp}}));
  }
  return result;
}

}  // namespace

ScoredPlacement fast_greedy(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  return filled(evaluator, empty_groups(groups));
}

ScoredPlacement greedy_by_family(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  return filled(evaluator, empty_groups(groups), /*together=*/true);
}

ScoredPlacement beam_search(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups, int width) {
  std::vector<ScoredPlacement> beam = {evaluator.evaluate(empty_groups(groups))};
  ScoredPlacement best = beam[0];
  std::set<ModelPlacement> seen;
  while (!beam.empty()) {
    std::vector<ScoredPlacement> next;
    for (const ScoredPlacement& from : beam) {
      for (ModelPlacement& placement : expansions(evaluator, from.placement)) {
        if (!seen.insert(placement).second) continue;
        if (evaluator.stopped()) return best;
        next.push_back(evaluator.evaluate(std::move(placement)));
        keep_better(best, next.back());
      }
    }
    std::ranges::stable_sort(next, std::ranges::greater{}, &ScoredPlacement::score);
    next.resize(std::min(next.size(), static_cast<std::size_t>(std::max(width, 1))));
    beam = std::move(next);
  }
  return best;
}

ModelPlacement round_robin(const PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  ModelPlacement placement = empty_groups(groups);
  MemoryUse memory(evaluator.problem(), placement);
  std::size_t group = 0;
  for (bool placed = true; placed;) {
    placed = false;
    for (const std::uint32_t model : evaluator.wanted()) {
      if (!memory.can_add(group, model)) continue;
      memory.add(group, model);
      placement[group].models.push_back(model);
      group = (group + 1) % groups.size();
      placed = true;
    }
  }
  return placement;
}

ModelPlacement uniform_replication(const PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  ModelPlacement placement = empty_groups(groups);
  MemoryUse memory(evaluator.problem(), placement);
  const auto& models = evaluator.wanted();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < models.size(); ++i) {
      const std::uint32_t model = models[(group + i) % models.size()];
      if (!memory.can_add(group, model)) break;
      memory.add(group, model);
      placement[group].models.push_back(model);
    }
  }
  return placement;
}

ScoredPlacement selective_replication(PlacementEvaluator& evaluator) {
  return fast_greedy(evaluator,
                     std::vector<GroupShape>(static_cast<std::size_t>(evaluator.problem().ranks), GroupShape{1, 1}));
}

ScoredPlacement improve(PlacementEvaluator& evaluator, ScoredPlacement start) {
  // Without swapping the groups that changed may have room for more models; with it host memory had room before.
  const bool may_fill = !evaluator.problem().memory.swapping;
  for (;;) {
    ScoredPlacement best = start;
    for (const auto& change : {with_other_models, with_fewer_models, with_siblings_together, with_other_groups}) {
      for (ModelPlacement& placement : change(evaluator, start)) {
        if (evaluator.stopped()) return best;
        const bool fill = may_fill && change == with_other_groups;
        keep_better(best, fill ? filled(evaluator, std::move(placement)) : evaluator.evaluate(std::move(placement)));
      }
    }
    if (!(best.score > start.score)) return start;
    start = std::move(best);
  }
}

}  // namespace computron
