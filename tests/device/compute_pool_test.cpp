#include "src/device/cpu/compute_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/device/device_support.h"
#include "tests/support/few_threads.h"

namespace computron {
namespace {

// [threads, spin_us]
class ComputePoolTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  ComputePool pool_{std::get<0>(GetParam()), std::get<1>(GetParam())};
  Progress progress_{kTestIdle};
};

class ComputePoolJoinTest : public ComputePoolTest {};  // with somebody to wait for

TEST_P(ComputePoolTest, RunsEachItemOnceInThousandsOfRounds) {
  std::vector<std::atomic<int>> runs(64);
  for (int round = 0; round < 3000; ++round) {
    const int items = round % 65;
    pool_.parallel_for(
        items, [&](int, int item) { ++runs[static_cast<std::size_t>(item)]; }, progress_);
    for (int item = 0; item < 64; ++item) {
      ASSERT_EQ(runs[static_cast<std::size_t>(item)].exchange(0), item < items ? 1 : 0)
          << "round " << round << " item " << item;
    }
  }
}

// Plain (not atomic) data, so that a missing happens-before edge at fork or join shows under the thread sanitizer.
TEST_P(ComputePoolTest, ForkAndJoinOrderMemory) {
  std::vector<int> values(37, 0);
  for (int round = 1; round <= 500; ++round) {
    pool_.parallel_for(
        37, [&](int, int item) { ++values[static_cast<std::size_t>(item)]; }, progress_);
    ASSERT_THAT(values, testing::Each(round));
  }
}

TEST_P(ComputePoolTest, ThreadZeroIsTheCallerAndThreadsAreInRange) {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 100; ++round) {
    pool_.parallel_for(
        16,
        [&](int thread, int) {
          if (thread < 0 || thread >= pool_.threads()) ++wrong;
          if ((thread == 0) != (std::this_thread::get_id() == caller)) ++wrong;
        },
        progress_);
  }
  EXPECT_EQ(wrong, 0);
}

// One item a thread, none of which ends before all have begun.
TEST_P(ComputePoolTest, AllThreadsTakePart) {
  std::atomic<int> begun = 0;
  pool_.parallel_for(
      pool_.threads(),
      [&](int, int) {
        ++begun;
        while (begun < pool_.threads()) std::this_thread::yield();
      },
      progress_);
  EXPECT_EQ(begun, pool_.threads());
}

TEST_P(ComputePoolTest, WakesWorkersThatSleep) {
  for (int round = 0; round < 5; ++round) {
    linger(2);
    std::atomic<int> begun = 0;
    pool_.parallel_for(
        pool_.threads(),
        [&](int, int) {
          ++begun;
          while (begun < pool_.threads()) std::this_thread::yield();
        },
        progress_);
    ASSERT_EQ(begun, pool_.threads());
  }
}

TEST_P(ComputePoolTest, RethrowsTheErrorOfAnItemAndGoesOn) {
  for (int round = 0; round < 200; ++round) {
    const auto body = [&](int, int item) {
      if (item == round % 40) throw std::runtime_error("planted");
    };
    ASSERT_THROW(pool_.parallel_for(40, body, progress_), std::runtime_error);
    std::atomic<int> runs = 0;
    pool_.parallel_for(
        40, [&](int, int) { ++runs; }, progress_);
    ASSERT_EQ(runs, 40);
  }
}

TEST_P(ComputePoolTest, OneOfSeveralErrorsIsRethrown) {
  const auto body = [](int, int item) { throw std::runtime_error(std::to_string(item)); };
  for (int round = 0; round < 200; ++round) ASSERT_THROW(pool_.parallel_for(8, body, progress_), std::runtime_error);
}

TEST_P(ComputePoolTest, PollsBetweenItemsOfTheCaller) {
  int polls = 0;
  progress_.set_hook([&] { ++polls; });
  std::atomic<int> items_of_caller = 0;
  pool_.parallel_for(
      50, [&](int thread, int) { items_of_caller += thread == 0; }, progress_);
  EXPECT_GE(polls, items_of_caller);
}

// The caller's only item ends at once; the other thread's ends when the caller has polled in the join.
TEST_P(ComputePoolJoinTest, PollsWhileItWaitsForWorkers) {
  std::atomic<int> polls = 0;
  progress_.set_hook([&] { ++polls; });
  std::atomic<bool> worker_inside = false;
  pool_.parallel_for(
      2,
      [&](int thread, int) {
        if (thread == 0) {
          while (!worker_inside) std::this_thread::yield();
        } else {
          worker_inside = true;
          while (polls < 5) std::this_thread::yield();
        }
      },
      progress_);
  EXPECT_GE(polls, 5);
}

// An error of the poll in the join must not leave while a worker still uses the caller's frame.
TEST_P(ComputePoolJoinTest, ErrorOfThePollWaitsForTheWorkers) {
  std::atomic<bool> thrown = false;
  std::atomic<bool> worker_inside = false;
  std::atomic<bool> worker_done = false;
  progress_.set_hook([&] {
    thrown = true;
    throw std::runtime_error("planted");
  });
  const auto body = [&](int thread, int) {
    if (thread == 0) {
      while (!worker_inside) std::this_thread::yield();
      return;
    }
    worker_inside = true;
    while (!thrown) std::this_thread::yield();
    linger(2);
    worker_done = true;
  };
  EXPECT_THROW(pool_.parallel_for(2, body, progress_), std::runtime_error);
  EXPECT_TRUE(worker_done);
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, int>>& test) {
  return std::to_string(std::get<0>(test.param)) + "ThreadsSpin" + std::to_string(std::get<1>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Threads, ComputePoolTest, testing::Combine(testing::Values(1, 2, 4), testing::Values(0, 30)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Threads, ComputePoolJoinTest, testing::Combine(testing::Values(2, 4), testing::Values(0, 30)),
                         name_of);

TEST(ComputePool, NestingIsRefused) {
  ComputePool pool(2, 0);
  Progress progress(kTestIdle);
  const auto nested = [&](int, int) {
    pool.parallel_for(
        2, [](int, int) {}, progress);
  };
  EXPECT_THROW(pool.parallel_for(2, nested, progress), Error);
}

// Some are there already, and wait for work.
TEST(ComputePool, ThreadThatCannotBeStartedIsAnError) {
  const WithFewThreads outcome = with_two_threads([] { const ComputePool pool(8, 0); });
  if (outcome == WithFewThreads::kNotToBeHad) GTEST_SKIP() << "only root can become another user";
  EXPECT_EQ(outcome, WithFewThreads::kSystemError);
}

TEST(ComputePool, ComesAndGoesWithoutWork) {
  for (int round = 0; round < 200; ++round) ComputePool pool(4, round % 2 * 10);
}

}  // namespace
}  // namespace computron
