#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/comm/alarm.h"
#include "computron/comm/mpi.h"

namespace computron {
namespace {

using testing::HasSubstr;

TEST(Vote, ReturnsWhenAllAreFine) {
  const auto world = Communicator::world();
  EXPECT_NO_THROW(vote(world, nullptr));
}

TEST(Agreement, IsThatOfAllRanks) {
  const auto world = Communicator::world();
  const auto wait = [](const std::function<bool()>& done) {
    while (!done()) {
    }
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(all_agree(world, wait, true));
    for (int other = 0; other < world.size(); ++other) EXPECT_FALSE(all_agree(world, wait, world.rank() != other));
    EXPECT_FALSE(all_agree(world, wait, false));
  }
}

// All ranks from `lowest` up fail, each for a reason of its own.
void expect_lowest_wins(const Communicator& world, int lowest) {
  const ConfigError mine("reason of rank " + std::to_string(world.rank()));
  try {
    vote(world, world.rank() >= lowest ? &mine : nullptr);
    FAIL() << "no error although ranks failed";
  } catch (const VoteError& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_EQ(error.rank(), lowest);
    EXPECT_EQ(error.reason(), "reason of rank " + std::to_string(lowest));
    EXPECT_EQ(std::string(error.what()), "rank " + std::to_string(lowest) + " " + host_name() + ": " + error.reason());
  }
}

TEST(Vote, EveryRankThrowsTheErrorOfTheLowestFailingRank) {
  const auto world = Communicator::world();
  for (int lowest = 0; lowest < world.size(); ++lowest) expect_lowest_wins(world, lowest);
}

TEST(Vote, OneRankFails) {
  const auto world = Communicator::world();
  const int failing = world.size() / 2;
  const Error mine(ExitCode::kNoInput, "no such file");
  try {
    vote(world, world.rank() == failing ? &mine : nullptr);
    FAIL() << "no error although a rank failed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoInput);
    EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(failing) + " "));
  }
}

TEST(Alarm, IsHeardByAllOthersAndByNobodyLater) {
  const auto world = Communicator::world();
  for (int raising = 0; raising < world.size(); ++raising) {
    Alarm alarm(world);
    EXPECT_FALSE(alarm.heard());
    world.barrier();
    if (world.rank() == raising) alarm.raise();
    EXPECT_EQ(alarm.heard_within(world.rank() == raising ? 0 : 60), world.rank() != raising);
    world.barrier();
    EXPECT_EQ(alarm.heard(), world.rank() != raising);
  }
}

// Those who have not listened hear nothing of it in the next phase.
TEST(Alarm, BelongsToItsPhase) {
  const auto world = Communicator::world();
  {
    Alarm alarm(world);
    if (world.rank() == 0) alarm.raise();
    world.barrier();
  }
  Alarm alarm(world);
  world.barrier();
  EXPECT_FALSE(alarm.heard_within(0.05));
}

}  // namespace
}  // namespace computron
