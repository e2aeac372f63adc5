#include "computron/dispatch/rotation.h"

#include <gmock/gmock.h>

#include <limits>

namespace computron::test {
namespace {

constexpr double kEver = std::numeric_limits<double>::infinity();

TEST(Rotation, AsksEverybodyAtFirstAndInOrder) {
  Rotation rotation(3);
  for (std::size_t member = 0; member < 3; ++member) {
    EXPECT_EQ(rotation.front(0), member);
    EXPECT_EQ(rotation.front(0), member) << "until it sleeps or yields";
    rotation.sleep(member, kEver);
  }
  EXPECT_EQ(rotation.front(1e9), std::nullopt);
  EXPECT_EQ(rotation.wakes_s(), kEver);
}

TEST(Rotation, WhoYieldsGoesBehindAllThatWait) {
  Rotation rotation(3);
  rotation.yield(0);
  EXPECT_EQ(rotation.front(0), 1u);
  rotation.sleep(1, kEver);
  EXPECT_EQ(rotation.front(0), 2u);
  rotation.yield(2);
  EXPECT_EQ(rotation.front(0), 0u);
}

TEST(Rotation, WakesWhoWasWokenOrWhoseTimeHasCome) {
  Rotation rotation(3);
  rotation.sleep(0, 2);
  rotation.sleep(1, kEver);
  rotation.sleep(2, 1);
  EXPECT_EQ(rotation.front(0.5), std::nullopt);
  EXPECT_EQ(rotation.wakes_s(), 1);
  EXPECT_EQ(rotation.front(1), 2u);
  rotation.wake(1);
  rotation.sleep(2, kEver);
  EXPECT_EQ(rotation.front(1), 1u);
  rotation.sleep(1, kEver);
  EXPECT_EQ(rotation.front(1), std::nullopt);
  EXPECT_EQ(rotation.wakes_s(), 2);
  EXPECT_EQ(rotation.front(3), 0u);
  EXPECT_LT(rotation.wakes_s(), 0) << "somebody waits";
}

TEST(Rotation, ATimeThatIsNamedAgainReplacesTheOneBefore) {
  Rotation rotation(1);
  rotation.sleep(0, 1);
  rotation.wake(0);
  rotation.sleep(0, 5);
  EXPECT_EQ(rotation.front(2), std::nullopt);
  EXPECT_EQ(rotation.wakes_s(), 5);
  EXPECT_EQ(rotation.front(5), 0u);
}

TEST(Rotation, WhoSleepsOutOfTurnLeavesTheOthersWhereTheyAre) {
  Rotation rotation(3);
  rotation.sleep(1, kEver);
  EXPECT_EQ(rotation.front(0), 0u);
  rotation.sleep(0, kEver);
  EXPECT_EQ(rotation.front(0), 2u);
}

}  // namespace
}  // namespace computron::test
