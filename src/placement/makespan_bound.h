// A makespan that no placement of given groups can be better than.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "computron/placement/placement_evaluator.h"

namespace computron {

// Models by their place in a list of at most 32.
using ModelSetMask = std::uint32_t;

class MakespanBound {
 public:
  struct Group {
    GroupShape shape;
    ModelSetMask may_have = 0;  // models; each has a profile of the shape
  };

  // Of the requests of `models`, by their numbers in the problem, all there from the start.
  MakespanBound(const SearchProblem& problem, const std::vector<std::uint32_t>& models);

  // However requests are divided among groups that may have their model. Of each group one stage is looked at: it
  // works for all its requests one after the other, behind the stages before it and before those behind it. Infinite
  // where no group may have a model that has requests.
  double of(std::span<const Group> groups) const;

 private:
  // Of a request on a group of one shape, at its stage that has most to do: the time there, before and behind.
  struct Cost {
    double head_s = 0, work_s = 0, tail_s = 0;  // 0 work: no profile
  };
  struct Share {
    double rate, fill_s;
  };

  std::vector<Cost> costs_of(const GroupShape& shape) const;
  double fill_s(const Group& group) const;
  double of_one(std::size_t model, std::span<const Group> groups, const std::vector<double>& fills_s) const;
  double of_set(ModelSetMask set, std::span<const Group> groups, const std::vector<double>& fills_s) const;
  double weighted(ModelSetMask set, std::span<const Group> groups, const std::vector<double>& fills_s,
                  const std::vector<double>& rates) const;
  static double time_until(double work, std::vector<Share> shares);

  const SearchProblem& problem_;
  std::vector<std::uint32_t> models_;
  std::vector<std::uint64_t> requests_;            // [model]
  std::map<GroupShape, std::vector<Cost>> costs_;  // [model]
  std::vector<ModelSetMask> sets_;                 // that are looked at
};

}  // namespace computron
