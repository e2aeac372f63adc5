#include "src/device/cpu/event.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/device/device_support.h"

namespace computron {
namespace {

class EventTest : public testing::Test {
 protected:
  CpuBench bench_{{}};
  CpuBench other_{{}};
  CpuEvent event_;
};

TEST_F(EventTest, NeverRecordedIsComplete) {
  EXPECT_TRUE(event_.query());
  EXPECT_TRUE(reached(mark_of(&event_)));
  EXPECT_TRUE(reached(mark_of(nullptr)));
}

TEST_F(EventTest, RecordIsPendingUntilCompleted) {
  const auto record = event_.begin_record(*bench_.copy);
  EXPECT_FALSE(event_.query());
  EXPECT_FALSE(event_.wait_for(record, /*timeout_us=*/100));
  event_.complete(record);
  EXPECT_TRUE(event_.query());
  EXPECT_TRUE(event_.wait_for(record, /*timeout_us=*/100));
}

TEST_F(EventTest, MarkKeepsTheRecordOfItsTime) {
  const auto before = mark_of(&event_);
  const auto first = event_.begin_record(*bench_.copy);
  const auto mark = mark_of(&event_);
  const auto second = event_.begin_record(*bench_.copy);
  EXPECT_TRUE(reached(before));
  EXPECT_FALSE(reached(mark));
  event_.complete(first);
  EXPECT_TRUE(reached(mark));
  EXPECT_FALSE(event_.query());
  event_.complete(second);
  EXPECT_TRUE(event_.query());
}

TEST_F(EventTest, WakesEverySleeper) {
  const auto record = event_.begin_record(*bench_.copy);
  std::atomic<int> woken = 0;
  std::vector<std::jthread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] {
      while (!event_.wait_for(record, /*timeout_us=*/60000000)) {
      }
      ++woken;
    });
  }
  linger(5);
  EXPECT_EQ(woken, 0);
  event_.complete(record);
  sleepers.clear();
  EXPECT_EQ(woken, 4);
}

// A sleeper for a later record must not lose its wake-up to an earlier one's.
TEST_F(EventTest, SleeperOutlastsAnEarlierRecord) {
  for (int round = 0; round < 200; ++round) {
    const auto first = event_.begin_record(*bench_.copy);
    const auto second = event_.begin_record(*bench_.copy);
    std::jthread sleeper([&] {
      while (!event_.wait_for(second, /*timeout_us=*/60000000)) {
      }
    });
    event_.complete(first);
    event_.complete(second);
  }
  EXPECT_TRUE(event_.query());
}

TEST_F(EventTest, MayChangeStreamsOnceReached) {
  const auto record = event_.begin_record(*bench_.copy);
  EXPECT_THROW(event_.begin_record(*other_.copy), Error);
  event_.complete(record);
  EXPECT_EQ(event_.begin_record(*other_.copy), record + 1);
}

TEST_F(EventTest, FailureReachesEveryoneWhoAsks) {
  const auto done = event_.begin_record(*bench_.copy);
  event_.complete(done);
  const auto record = event_.begin_record(*bench_.copy);
  event_.fail(std::make_exception_ptr(Error(ExitCode::kIo, "planted")));
  EXPECT_TRUE(event_.has_reached(done));
  EXPECT_THROW(event_.has_reached(record), Error);
  EXPECT_THROW(event_.wait_for(record, /*timeout_us=*/100), Error);
  EXPECT_THROW(event_.query(), Error);
}

TEST_F(EventTest, OtherDevicesEventsAreRefused) {
  class Foreign final : public Event {
    bool query() const override { return true; }
  } foreign;
  EXPECT_THROW(mark_of(&foreign), Error);
  EXPECT_THROW(bench_.copy->record(foreign), Error);
  EXPECT_THROW(bench_.compute->wait(foreign), Error);
}

}  // namespace
}  // namespace computron
