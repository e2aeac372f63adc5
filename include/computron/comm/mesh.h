// The ranks of one group as pp stages of tp tensor-parallel ranks: rank = stage · tp + t.
#pragma once

#include <optional>

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
};

// This rank's place. Owns the communicators; collective to make. ConfigError when world.size() ≠ tp · pp.
struct Mesh {
  Mesh(MeshShape shape, Communicator world);

  MeshShape shape;
  int rank;
  int stage;
  int t;
  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage == shape.pp - 1; }

  Communicator world;
  Communicator tensor;  // the tp ranks of this stage, by t
};

}  // namespace computron
