#include "computron/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "computron/comm/agreed.h"

namespace computron {
namespace {

std::vector<MeshShape> shapes_of(int ranks) {
  std::vector<MeshShape> shapes;
  for (int tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp == 0) shapes.push_back({.tp = tp, .pp = ranks / tp});
  }
  return shapes;
}

TEST(MeshShape, RankIsStageTimesTpPlusT) {
  const MeshShape shape{.tp = 4, .pp = 3};
  EXPECT_EQ(shape.ranks(), 12);
  EXPECT_EQ(shape.rank_of(2, 1), 9);
  EXPECT_EQ(shape.stage_of(9), 2);
  EXPECT_EQ(shape.t_of(9), 1);
}

// Every pair of neighbours is in one of the two parities, and no stage is in two pairs of one.
TEST(MeshShape, NeighboursMakePairs) {
  for (int pp = 1; pp <= 5; ++pp) {
    const MeshShape shape{.tp = 2, .pp = pp};
    std::map<int, std::vector<int>> stages;  // [lower stage]
    for (int stage = 0; stage < pp; ++stage) {
      for (int parity = 0; parity < 2; ++parity) {
        if (const auto lower = shape.pair_of(stage, parity)) {
          EXPECT_EQ(*lower % 2, parity);
          stages[*lower].push_back(stage);
        }
      }
    }
    EXPECT_EQ(static_cast<int>(stages.size()), pp - 1);
    for (const auto& [lower, both] : stages) EXPECT_THAT(both, testing::ElementsAre(lower, lower + 1));
  }
}

TEST(Mesh, EveryShapeOfThisManyRanks) {
  const int ranks = Communicator::world().size();
  for (const MeshShape shape : shapes_of(ranks)) {
    const Mesh mesh(shape, Communicator::world());
    EXPECT_EQ(mesh.rank, mesh.group.rank());
    EXPECT_EQ(shape.rank_of(mesh.stage, mesh.t), mesh.rank);
    EXPECT_EQ(mesh.first_stage(), mesh.rank < shape.tp);
    EXPECT_EQ(mesh.last_stage(), mesh.rank >= ranks - shape.tp);
    EXPECT_EQ(mesh.tensor.size(), shape.tp);
    EXPECT_EQ(mesh.tensor.rank(), mesh.t);
  }
}

// The tensor communicator joins the ranks of one stage and no others.
TEST(Mesh, TensorGroupIsOneStage) {
  for (const MeshShape shape : shapes_of(Communicator::world().size())) {
    const Mesh mesh(shape, Communicator::world());
    EXPECT_EQ(mesh.tensor.all_reduce_max(mesh.rank),
              static_cast<std::uint64_t>(shape.rank_of(mesh.stage, shape.tp - 1)));
  }
}

// Groups of 1, 2, ... ranks, as far as there are any.
std::vector<MeshShape> growing_groups(int ranks) {
  std::vector<MeshShape> shapes;
  for (int size = 1; ranks > 0; ++size) {
    const int taken = std::min(size, ranks);
    shapes.push_back(taken % 2 == 0 ? MeshShape{.tp = 2, .pp = taken / 2} : MeshShape{.tp = 1, .pp = taken});
    ranks -= taken;
  }
  return shapes;
}

// Consecutive ranks, each with a place of its own in its group and communicators that join no others.
TEST(Mesh, GroupsPartitionTheRanks) {
  const int ranks = Communicator::world().size();
  const Mesh mesh(growing_groups(ranks), Communicator::world());
  EXPECT_EQ(mesh.job.size(), ranks);
  int first = 0;
  for (const RankGroup& group : mesh.groups) {
    EXPECT_EQ(group.first_rank, first);
    EXPECT_EQ(group.has(mesh.job.rank()), group.index == mesh.group_index);
    first += group.shape.ranks();
  }
  EXPECT_EQ(first, ranks);
  EXPECT_EQ(mesh.own_group().job_rank(mesh.rank), mesh.job.rank());
  EXPECT_EQ(mesh.group.size(), mesh.shape.ranks());
  EXPECT_EQ(mesh.group.rank(), mesh.rank);
  EXPECT_EQ(mesh.group.all_reduce_max(static_cast<std::uint64_t>(mesh.group_index)),
            static_cast<std::uint64_t>(mesh.group_index));
  EXPECT_EQ(mesh.tensor.size(), mesh.shape.tp);
  EXPECT_EQ(mesh.tensor.all_reduce_max(static_cast<std::uint64_t>(mesh.job.rank())),
            static_cast<std::uint64_t>(mesh.own_group().job_rank(mesh.shape.rank_of(mesh.stage, mesh.shape.tp - 1))));
  EXPECT_EQ(mesh.schedules(), mesh.job.rank() == 0);
}

// What fails in one group fails everywhere, in the words and with the rank of the one that failed.
TEST(Mesh, AFailureInAGroupIsTheJobs) {
  const int ranks = Communicator::world().size();
  const Mesh mesh(growing_groups(ranks), Communicator::world());
  const int failing = ranks - 1;
  try {
    agreed(mesh.job, [&] {
      agreed(mesh.group, [&] {
        if (mesh.job.rank() == failing) throw ConfigError("too few frames");
      });
    });
    FAIL() << "nobody heard of it";
  } catch (const VoteError& error) {
    EXPECT_EQ(error.rank(), failing);
    EXPECT_EQ(error.reason(), "too few frames");
    EXPECT_EQ(error.is_own(), mesh.job.rank() == failing);
  }
}

TEST(Mesh, RefusesAShapeOfAnotherSize) {
  const int ranks = Communicator::world().size();
  for (const MeshShape shape : {MeshShape{.tp = ranks + 1, .pp = 1}, MeshShape{.tp = ranks, .pp = 2},
                                MeshShape{.tp = 0, .pp = 0}, MeshShape{.tp = -1, .pp = -ranks}}) {
    try {
      Mesh(shape, Communicator::world());
      FAIL() << "accepted tp " << shape.tp << " pp " << shape.pp;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(ranks) + " ranks"));
    }
  }
}

}  // namespace
}  // namespace computron
