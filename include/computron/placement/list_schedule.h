// List scheduling of tasks that are chains of equal units: whenever devices are free, the task with the longest
// remaining time goes on with its next unit (Hydra's Sharded-LRTF: Nagrecha and Kumar, "Hydra: A System for Large
// Multi-Model Deep Learning", arXiv 2110.08633). Units are not fetched ahead, and take as long as they take.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace computron {

struct ListTask {
  std::size_t units = 0;       // one after the other: no two of them at a time
  std::vector<double> unit_s;  // [device] of each; infinite: not there
};

struct ListSchedule {
  double makespan_s = 0;
  std::vector<std::vector<std::size_t>> units;  // [task][device] that ran there
};

// Devices take tasks in their order, and of tasks with as much left the first. Of units that are equally long on all
// devices the makespan is the least there can be: max(⌈units / devices⌉, longest task).
// Error{kUsage} where a task can run nowhere, or has not a time above 0 for each device.
ListSchedule list_schedule(std::span<const ListTask> tasks, std::size_t devices);

}  // namespace computron
