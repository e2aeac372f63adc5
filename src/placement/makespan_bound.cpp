#include "src/placement/makespan_bound.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "computron/base/error.h"

namespace computron {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr std::size_t kAllSets = 6;  // of so many models; of more, each alone, and all together

bool has(ModelSetMask set, std::size_t model) { return (set >> model & 1) != 0; }

}  // namespace

MakespanBound::MakespanBound(const SearchProblem& problem, const std::vector<std::uint32_t>& models)
    : problem_(problem), models_(models) {
  ensure(models.size() < 32, "a set of models has at most 31");
  for (const std::uint32_t model : models_) {
    requests_.push_back(static_cast<std::uint64_t>(std::ranges::count(problem.arrivals, model, &Arrival::model)));
    for (const auto& [shape, profile] : problem.models[model].shapes) costs_[shape];
  }
  for (auto& [shape, costs] : costs_) costs = costs_of(shape);
  const ModelSetMask all = (ModelSetMask{1} << models.size()) - 1;
  for (ModelSetMask set = 1; set <= all && models.size() <= kAllSets; ++set) {
    if (std::popcount(set) > 1) sets_.push_back(set);
  }
  if (models.size() > kAllSets) sets_.push_back(all);
}

std::vector<MakespanBound::Cost> MakespanBound::costs_of(const GroupShape& shape) const {
  const double penalty = 1 + problem_.stage_penalty * shape.pp;
  std::vector<double> busy_s(static_cast<std::size_t>(shape.pp));
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const ShapeProfile* const profile = problem_.models[models_[m]].find(shape);
    for (std::size_t stage = 0; profile != nullptr && stage < busy_s.size(); ++stage) {
      busy_s[stage] += static_cast<double>(requests_[m]) * profile->stage_s[stage];
    }
  }
  const auto stage = std::ranges::max_element(busy_s) - busy_s.begin();
  std::vector<Cost> costs(models_.size());
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const ShapeProfile* const profile = problem_.models[models_[m]].find(shape);
    if (profile == nullptr) continue;
    const std::vector<double> times_s(profile->stage_s.begin(), profile->stage_s.end());
    costs[m] = {.head_s = penalty * std::accumulate(times_s.begin(), times_s.begin() + stage, 0.0),
                .work_s = penalty * times_s[static_cast<std::size_t>(stage)],
                .tail_s = penalty * std::accumulate(times_s.begin() + stage + 1, times_s.end(), 0.0)};
  }
  return costs;
}

// Of a group's time, in which its stage has nothing to do, whatever it serves.
double MakespanBound::fill_s(const Group& group) const {
  const std::vector<Cost>& costs = costs_.at(group.shape);
  double head_s = kImpossible, tail_s = kImpossible;
  for (std::size_t m = 0; m < models_.size(); ++m) {
    if (!has(group.may_have, m)) continue;
    head_s = std::min(head_s, costs[m].head_s);
    tail_s = std::min(tail_s, costs[m].tail_s);
  }
  return head_s == kImpossible ? 0 : head_s + tail_s;
}

// Of alike requests each goes where it ends first: no division is better.
double MakespanBound::of_one(std::size_t model, std::span<const Group> groups,
                             const std::vector<double>& fills_s) const {
  std::vector<double> ends_s, works_s;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!has(groups[g].may_have, model)) continue;
    ends_s.push_back(fills_s[g]);
    works_s.push_back(costs_.at(groups[g].shape)[model].work_s);
  }
  if (ends_s.empty()) return requests_[model] > 0 ? kImpossible : 0;
  double latest_s = 0;
  for (std::uint64_t i = 0; i < requests_[model]; ++i) {
    std::size_t best = 0;
    for (std::size_t g = 1; g < ends_s.size(); ++g) {
      if (ends_s[g] + works_s[g] < ends_s[best] + works_s[best]) best = g;
    }
    ends_s[best] += works_s[best];
    latest_s = std::max(latest_s, ends_s[best]);
  }
  return latest_s;
}

// When groups that each do `rate` of the work a second, from fill_s on, have done it all.
double MakespanBound::time_until(double work, std::vector<Share> shares) {
  std::ranges::sort(shares, {}, &Share::fill_s);
  double rate = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    rate += shares[i].rate;
    work += shares[i].rate * shares[i].fill_s;
    if (i + 1 == shares.size() || work / rate <= shares[i + 1].fill_s) return work / rate;
  }
  return 0;
}

// A request of a model counts as the least work that it is in any group, at these rates a second.
double MakespanBound::weighted(ModelSetMask set, std::span<const Group> groups, const std::vector<double>& fills_s,
                               const std::vector<double>& rates) const {
  double work = 0;
  for (std::size_t m = 0; m < models_.size(); ++m) {
    if (!has(set, m)) continue;
    double least = kImpossible;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (has(groups[g].may_have, m)) least = std::min(least, rates[g] * costs_.at(groups[g].shape)[m].work_s);
    }
    work += static_cast<double>(requests_[m]) * (least == kImpossible ? 0 : least);
  }
  std::vector<Share> shares;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if ((groups[g].may_have & set) != 0) shares.push_back({rates[g], fills_s[g]});
  }
  return time_until(work, std::move(shares));
}

// Any rates give a bound. Those at which one model is as much work everywhere give a good one.
double MakespanBound::of_set(ModelSetMask set, std::span<const Group> groups,
                             const std::vector<double>& fills_s) const {
  std::vector<double> rates(groups.size(), 1);
  double bound_s = weighted(set, groups, fills_s, rates);
  for (std::size_t m = 0; m < models_.size(); ++m) {
    if (!has(set, m)) continue;
    bool everywhere = true;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const double work_s = costs_.at(groups[g].shape)[m].work_s;
      everywhere = everywhere && (work_s > 0 || (groups[g].may_have & set) == 0);
      rates[g] = work_s > 0 ? 1 / work_s : 1;
    }
    if (everywhere) bound_s = std::max(bound_s, weighted(set, groups, fills_s, rates));
  }
  return bound_s;
}

double MakespanBound::of(std::span<const Group> groups) const {
  std::vector<double> fills_s;
  for (const Group& group : groups) fills_s.push_back(fill_s(group));
  double bound_s = 0;
  for (std::size_t m = 0; m < models_.size(); ++m) bound_s = std::max(bound_s, of_one(m, groups, fills_s));
  for (const ModelSetMask set : sets_) bound_s = std::max(bound_s, of_set(set, groups, fills_s));
  return bound_s;
}

}  // namespace computron
