#include "src/placement/memory_use.h"

#include <algorithm>
#include <functional>

namespace computron {

MemoryUse::MemoryUse(const SearchProblem& problem, const ModelPlacement& placement) : problem_(problem) {
  int rank = problem.first_rank;
  for (const PlacedGroup& placed : placement) {
    groups_.push_back({.shape = placed.shape, .first_rank = rank, .used_bytes = 0, .models = {}, .parts = {}});
    rank += placed.shape.ranks();
  }
  for (std::size_t g = 0; g < placement.size(); ++g) {
    for (const std::uint32_t model : placement[g].models) add(g, model);
  }
}

const ShapeProfile* MemoryUse::profile(std::size_t group, std::uint32_t model) const {
  return problem_.models[model].find(groups_[group].shape);
}

bool MemoryUse::is_like_its_replicas(std::uint32_t model, const GroupShape& shape) const {
  const auto other = shapes_.find(model);
  if (problem_.replicas == ReplicaRule::kAny || other == shapes_.end()) return true;
  return problem_.replicas == ReplicaRule::kSameTp ? other->second.tp == shape.tp : other->second == shape;
}

std::int64_t MemoryUse::node_bytes(int node) const {
  const auto& swapping = *problem_.memory.swapping;
  const int begin = std::max(node * swapping.ranks_per_node, problem_.first_rank);
  const int end = std::min((node + 1) * swapping.ranks_per_node, problem_.first_rank + problem_.ranks);
  return swapping.host_bytes * (end - begin);
}

std::int64_t MemoryUse::more_rank_bytes(const Group& group, const ShapeProfile& profile) {
  if (profile.shared.empty()) return profile.rank_bytes();
  std::vector<std::int64_t> bytes = profile.stage_frame_bytes();
  for (const SharedPart& part : profile.shared) {
    if (!group.parts.contains(part.name)) continue;
    std::ranges::transform(bytes, part.stage_frame_bytes(), bytes.begin(), std::minus());
  }
  return std::ranges::max(bytes);
}

MemoryUse::MoreBytes MemoryUse::more_bytes(std::size_t group, std::uint32_t model) const {
  const Group& own = groups_[group];
  const ShapeProfile& profile = *this->profile(group, model);
  MoreBytes more;
  for (int rank = 0; rank < own.shape.ranks(); ++rank) {
    const int node = (own.first_rank + rank) / problem_.memory.swapping->ranks_per_node;
    const PlaceOf<std::uint32_t> shard(node, model, own.shape, rank);
    if (shards_.contains(shard)) continue;
    const auto stage = static_cast<std::size_t>(rank / own.shape.tp);
    std::int64_t bytes = profile.stage_link_bytes()[stage];
    for (const SharedPart& part : profile.shared) {
      const PlaceOf<std::string_view> place(node, part.name, own.shape, rank);
      if (parts_.contains(place)) {
        bytes -= part.stage_link_bytes()[stage];
      } else {
        more.parts.push_back(place);
      }
    }
    more.by_node[node] += bytes;
    more.shards.push_back(shard);
  }
  return more;
}

bool MemoryUse::can_add(std::size_t group, std::uint32_t model) const {
  const Group& own = groups_[group];
  const ShapeProfile* const found = profile(group, model);
  if (found == nullptr || own.models.contains(model)) return false;
  if (!is_like_its_replicas(model, own.shape)) return false;
  if (!problem_.memory.swapping) {
    return own.used_bytes + more_rank_bytes(own, *found) <= problem_.memory.device_bytes;
  }
  const std::int64_t least = std::min(found->rank_bytes(), 2 * problem_.memory.swapping->page_bytes);
  if (problem_.memory.device_bytes < least) return false;  // a model streams through two frames at least
  const auto more = more_bytes(group, model);
  return std::ranges::all_of(more.by_node, [this](const auto& node) {
    const auto used = node_used_.find(node.first);
    return (used == node_used_.end() ? 0 : used->second) + node.second <= node_bytes(node.first);
  });
}

void MemoryUse::add(std::size_t group, std::uint32_t model) {
  if (problem_.memory.swapping) {
    const MoreBytes more = more_bytes(group, model);
    for (const auto& [node, bytes] : more.by_node) node_used_[node] += bytes;
    shards_.insert(more.shards.begin(), more.shards.end());
    parts_.insert(more.parts.begin(), more.parts.end());
  }
  const ShapeProfile& profile = *this->profile(group, model);
  Group& own = groups_[group];
  own.used_bytes += more_rank_bytes(own, profile);
  own.models.insert(model);
  for (const SharedPart& part : profile.shared) own.parts.insert(part.name);
  shapes_.emplace(model, own.shape);
}

std::set<GroupShape> shapes_with_room(const SearchProblem& problem, std::uint32_t model) {
  std::set<GroupShape> shapes;
  for (const auto& [shape, profile] : problem.models[model].shapes) {
    if (shape.ranks() > problem.ranks) continue;
    if (MemoryUse(problem, {{shape, {}}}).can_add(0, model)) shapes.insert(shape);
  }
  return shapes;
}

bool fits(const SearchProblem& problem, const ModelPlacement& placement) {
  ModelPlacement groups = placement;
  for (PlacedGroup& group : groups) group.models.clear();
  MemoryUse memory(problem, groups);
  for (std::size_t g = 0; g < placement.size(); ++g) {
    for (const std::uint32_t model : placement[g].models) {
      if (!memory.can_add(g, model)) return false;
      memory.add(g, model);
    }
  }
  return true;
}

}  // namespace computron
