#include "computron/comm/mesh.h"

#include <fmt/format.h>

#include <algorithm>

namespace computron {

namespace {

std::vector<RankGroup> checked(std::vector<RankGroup> groups, int ranks) {
  long long needed = 0;
  bool sound = !groups.empty();
  std::string shapes;
  for (const RankGroup& group : groups) {
    const auto [tp, pp] = group.shape;
    sound &= tp >= 1 && pp >= 1;
    needed += static_cast<long long>(tp) * pp;
    shapes += fmt::format("{}tp {} x pp {}", shapes.empty() ? "" : " + ", tp, pp);
  }
  if (!sound || needed != ranks) throw ConfigError(fmt::format("mesh of {} does not fit {} ranks", shapes, ranks));
  return groups;
}

int group_of(const std::vector<RankGroup>& groups, int job_rank) {
  const auto own = std::ranges::find_if(groups, [job_rank](const RankGroup& group) { return group.has(job_rank); });
  return static_cast<int>(own - groups.begin());
}

}  // namespace

std::vector<RankGroup> consecutive_groups(std::span<const MeshShape> shapes) {
  std::vector<RankGroup> groups;
  int first_rank = 0;
  for (const MeshShape& shape : shapes) {
    groups.push_back({static_cast<int>(groups.size()), first_rank, shape});
    first_rank += shape.ranks();
  }
  return groups;
}

Mesh::Mesh(MeshShape shape, Communicator job) : Mesh(std::span(&shape, 1), std::move(job)) {}

Mesh::Mesh(std::span<const MeshShape> shapes, Communicator job)
    : groups(checked(consecutive_groups(shapes), job.size())),
      group_index(group_of(groups, job.rank())),
      shape(own_group().shape),
      rank(job.rank() - own_group().first_rank),
      stage(shape.stage_of(rank)),
      t(shape.t_of(rank)),
      job(std::move(job)),
      group(this->job.split(group_index, rank)),
      tensor(group.split(stage, t)) {
  this->job.leave_to_finalize();  // at the end of a job a rank may be telling rank 0 of a signal
}

}  // namespace computron
