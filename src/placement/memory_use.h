// Which models may still be added to which groups of a placement.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "computron/placement/placement_evaluator.h"

namespace computron {

// Without swapping a rank must hold its shards of all models of its group. With swapping a node must hold those of its
// ranks, equal ones once. What several models share counts once. Replicas have in common what the problem asks of them.
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
    std::set<std::string_view> parts = {};  // that several models have
  };
  template <class Of>
  using PlaceOf = std::tuple<int, Of, GroupShape, int>;  // node, of what, shape, rank of the group
  struct MoreBytes {
    std::map<int, std::int64_t> by_node;
    std::vector<PlaceOf<std::uint32_t>> shards;    // of models, what they share aside
    std::vector<PlaceOf<std::string_view>> parts;  // that they share
  };

  const ShapeProfile* profile(std::size_t group, std::uint32_t model) const;
  bool is_like_its_replicas(std::uint32_t model, const GroupShape& shape) const;
  // What the model takes in frames beside what the group has, on the rank that holds most.
  static std::int64_t more_rank_bytes(const Group& group, const ShapeProfile& profile);
  // The bytes that the nodes would hold beside what they hold, and of what.
  MoreBytes more_bytes(std::size_t group, std::uint32_t model) const;
  std::int64_t node_bytes(int node) const;

  const SearchProblem& problem_;
  std::vector<Group> groups_;
  std::map<std::uint32_t, GroupShape> shapes_;  // of one group of each model that has some
  std::set<PlaceOf<std::uint32_t>> shards_;
  std::set<PlaceOf<std::string_view>> parts_;
  std::map<int, std::int64_t> node_used_;
};

// Of a model: those that there are ranks for, with room for the model alone.
std::set<GroupShape> shapes_with_room(const SearchProblem& problem, std::uint32_t model);

}  // namespace computron
