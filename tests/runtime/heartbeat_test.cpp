// What takes long without being a hang: work with files, and waiting for a rank that is late. With a limit of a second
// and a half, of which twice would end this program with 79.
#include "computron/runtime/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "computron/base/time.h"

namespace computron {
namespace {

constexpr double kLimit_s = 1.5;
constexpr std::chrono::seconds kLong{4};

HeartbeatOptions short_limits() {
  return {.limits = WatchdogLimits{kLimit_s, kLimit_s, kLimit_s, kLimit_s, kLimit_s, kLimit_s, 4},
          .folder = testing::TempDir()};
}

TEST(Heartbeat, LongWorkWithFilesIsNoHang) {
  const Communicator world = Communicator::world();
  Heartbeat heartbeat(world, short_limits());
  if (world.rank() == 0) heartbeat.run_beside([] { std::this_thread::sleep_for(kLong); });
  world.barrier();
  heartbeat.recorder().remove();
}

TEST(Heartbeat, WorkThatFailsTellsWhy) {
  const Communicator world = Communicator::world();
  Heartbeat heartbeat(world, short_limits());
  EXPECT_THROW(heartbeat.run_beside([] { throw std::runtime_error("why"); }), std::runtime_error);
  heartbeat.recorder().remove();
}

// Each rank has told the other that it lives, and ends its heartbeat before it has heard that. What comes late would
// take the place of a message of the next communicator: which one, depends on how many there were before.
TEST(Heartbeat, LateSignsDoNotReachTheNextCommunicator) {
  constexpr int kMessages = 100;
  const Communicator world = Communicator::world();
  for (int i = 0; i < 5; ++i) {
    {
      Heartbeat heartbeat(world, short_limits());
      heartbeat.poll();
      heartbeat.recorder().remove();
    }
    const Communicator next = world.split(/*color=*/0, world.rank());
    for (int message = 0; message < kMessages; ++message) {
      EXPECT_EQ(next.all_reduce_max(static_cast<std::uint64_t>(world.rank())), world.size() - 1);
    }
  }
}

// Rank 0 waits in a call that knows no polling.
TEST(Heartbeat, WaitingForALateRankToSplitIsNoHang) {
  const Communicator world = Communicator::world();
  if (world.size() != 2) GTEST_SKIP() << "two ranks";
  Heartbeat heartbeat(world, short_limits());
  for (const double end_s = now_s() + 4; world.rank() == 1 && now_s() < end_s;) {
    heartbeat.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(world.split(world.rank(), 0).size(), 1);
  EXPECT_EQ(world.split_shared_memory().size(), 2);
  heartbeat.recorder().remove();
}

}  // namespace
}  // namespace computron
