#include "computron/placement/list_schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t sum_of(const std::vector<std::size_t>& units) {
  return std::accumulate(units.begin(), units.end(), std::size_t{0});
}

// Equal units, unbuffered: max(⌈units / devices⌉, longest task).
TEST(ListSchedule, OfEqualUnitsIsTheBestThereIs) {
  std::mt19937 random(1);
  std::size_t by_work = 0, by_longest = 0;
  for (int instance = 0; instance < 500; ++instance) {
    const std::size_t devices = 1 + random() % 8;
    std::vector<ListTask> tasks(1 + random() % 12);
    std::size_t units = 0, longest = 0;
    for (ListTask& task : tasks) {
      task = {.units = random() % 20, .unit_s = std::vector<double>(devices, .5)};
      units += task.units;
      longest = std::max(longest, task.units);
    }
    const std::size_t work = (units + devices - 1) / devices;
    const ListSchedule schedule = list_schedule(tasks, devices);
    EXPECT_EQ(schedule.makespan_s, .5 * static_cast<double>(std::max(work, longest))) << instance;
    for (std::size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(sum_of(schedule.units[i]), tasks[i].units);
    ++(work > longest ? by_work : by_longest);
  }
  EXPECT_GT(std::min(by_work, by_longest), 50u);
}

TEST(ListSchedule, LeavesDevicesIdleThatOutnumberTasks) {
  const std::vector<ListTask> tasks = {{3, {1, 1, 1}}, {2, {1, 1, 1}}};
  const ListSchedule schedule = list_schedule(tasks, 3);
  EXPECT_EQ(schedule.makespan_s, 3);
  EXPECT_EQ(schedule.units[0][2] + schedule.units[1][2], 0u);
}

TEST(ListSchedule, TakesTheTaskWithMostLeft) {
  // On one device: the sum, in the order of what is left. On two: the long one is begun first, and ends last.
  const std::vector<ListTask> tasks = {{1, {2, 2}}, {1, {3, 3}}, {4, {2, 2}}};
  EXPECT_EQ(list_schedule(std::vector<ListTask>{{1, {2}}, {1, {3}}, {4, {2}}}, 1).makespan_s, 13);
  const ListSchedule schedule = list_schedule(tasks, 2);
  EXPECT_EQ(schedule.makespan_s, 8);
  EXPECT_THAT(schedule.units[1], ElementsAre(0, 1));
}

TEST(ListSchedule, KeepsUnitsWhereTheyCanRun) {
  const ListSchedule schedule = list_schedule(std::vector<ListTask>{{2, {kNever, 4}}, {4, {1, kNever}}}, 2);
  EXPECT_EQ(schedule.makespan_s, 8);
  EXPECT_THAT(schedule.units, ElementsAre(ElementsAre(0, 2), ElementsAre(4, 0)));
  EXPECT_EQ(list_schedule({}, 3).makespan_s, 0);
}

TEST(ListSchedule, WhatCannotBeScheduledIsNamed) {
  const auto refused = [](std::vector<double> unit_s, const char* why) {
    expect_error(ExitCode::kUsage, why, [&] { list_schedule(std::vector<ListTask>{{1, unit_s}}, 2); });
  };
  refused({kNever, kNever}, "task 0 can run nowhere");
  refused({1}, "task 0 has not one time a device");
  refused({1, 0}, "task 0 has a time that is not above 0");
}

}  // namespace
}  // namespace computron
