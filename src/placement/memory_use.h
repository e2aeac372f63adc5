// Which models may still be added to which groups of a placement.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "computron/placement/placement_evaluator.h"

namespace computron {

// Without swapping a rank must hold its shards of all models of its group. With swapping a node must hold those of its
// ranks, equal ones once. Replicas have in common what the problem asks of them.
class MemoryUse {
 public:
  // Borrows `problem`.
  MemoryUse(const SearchProblem& problem, const ModelPlacement& placement);

  // Whether the model can be served by the group, is not yet, and fits.
  bool can_add(std::size_t group, std::uint32_t model) const;
  void add(std::size_t group, std::uint32_t model);

 private:
  struct Group {
    GroupShape shape;
    int first_rank;
    std::int64_t used_bytes = 0;  // of the rank that holds most
    std::set<std::uint32_t> models;
  };
  using Shard = std::tuple<int, std::uint32_t, GroupShape, int>;  // node, model, shape, rank of the group

  const ShapeProfile* profile(std::size_t group, std::uint32_t model) const;
  bool is_like_its_replicas(std::uint32_t model, const GroupShape& shape) const;
  // The bytes that the nodes would hold beside what they hold; `shards`, if there are some, receives which.
  std::map<int, std::int64_t> more_bytes(std::size_t group, std::uint32_t model, std::vector<Shard>* shards) const;
  std::int64_t node_bytes(int node) const;

  const SearchProblem& problem_;
  std::vector<Group> groups_;
  std::map<std::uint32_t, GroupShape> shapes_;  // of one group of each model that has some
  std::set<Shard> shards_;
  std::map<int, std::int64_t> node_used_;
};

// Of a model: those that there are ranks for, with room for the model alone.
std::set<GroupShape> shapes_with_room(const SearchProblem& problem, std::uint32_t model);

}  // namespace computron
