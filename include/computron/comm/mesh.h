// The ranks of a job, partitioned into groups of consecutive ranks. A group is pp stages of tp tensor-parallel ranks:
// rank in the group = stage · tp + t. A job of one group is the usual case.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "computron/comm/mpi.h"

namespace computron {

struct MeshShape {
  int tp = 1;
  int pp = 1;
  int ranks() const { return tp * pp; }
  int stage_of(int rank) const { return rank / tp; }
  int t_of(int rank) const { return rank % tp; }
  int rank_of(int stage, int t) const { return stage * tp + t; }
  // Neighbouring stages make pairs (s, s + 1), those with even s and those with odd s: the pair of `parity` (0 or 1)
  // that `stage` is in, by its lower stage.
  std::optional<int> pair_of(int stage, int parity) const {
    const int lower = stage % 2 == parity ? stage : stage - 1;
    if (lower < 0 || lower + 1 >= pp) return std::nullopt;
    return lower;
  }
  bool operator==(const MeshShape&) const = default;
};

// One group of a job, and where its ranks are in the job.
struct RankGroup {
  int index = 0;       // among the groups of the job
  int first_rank = 0;  // of the job
  MeshShape shape;
  int job_rank(int rank) const { return first_rank + rank; }  // of a rank of the group
  bool has(int job_rank) const { return job_rank >= first_rank && job_rank < first_rank + shape.ranks(); }
  // The rank of the group that reports what a pass computed.
  int sampler() const { return shape.rank_of(shape.pp - 1, 0); }
};

// Groups of these shapes over the ranks 0, 1, ... of a job, one behind the other.
std::vector<RankGroup> consecutive_groups(std::span<const MeshShape> shapes);

// This rank's place. Owns the communicators (`job` is left to MPI_Finalize); collective to make, over all ranks of
// `job`. ConfigError when the groups have not as many ranks as the job.
struct Mesh {
  Mesh(MeshShape shape, Communicator job);  // of one group
  Mesh(std::span<const MeshShape> shapes, Communicator job);

  std::vector<RankGroup> groups;  // all of the job
  int group_index;                // of this rank's group
  MeshShape shape;                // of this rank's group, as are rank, stage and t in it
  int rank;
  int stage;
  int t;
  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage == shape.pp - 1; }
  // Of the job: it schedules, reads requests and writes results.
  bool schedules() const { return job.rank() == 0; }
  const RankGroup& own_group() const { return groups[static_cast<std::size_t>(group_index)]; }

  Communicator job;     // all ranks: steps, done records, votes
  Communicator group;   // the ranks of this rank's group: activations
  Communicator tensor;  // the tp ranks of this stage, by t: sums
};

}  // namespace computron
