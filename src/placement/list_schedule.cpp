#include "computron/placement/list_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "computron/base/error.h"

namespace computron {
namespace {

constexpr double kNowhere = std::numeric_limits<double>::infinity();

void check(std::span<const ListTask> tasks, std::size_t devices) {
  const auto bad = [](std::size_t task, const char* why) {
    throw Error(ExitCode::kUsage, fmt::format("list schedule: task {} {}", task, why));
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const std::vector<double>& unit_s = tasks[i].unit_s;
    if (unit_s.size() != devices) bad(i, "has not one time a device");
    if (!std::ranges::all_of(unit_s, [](double time_s) { return time_s > 0; }))
      bad(i, "has a time that is not above 0");
    if (std::ranges::all_of(unit_s, [](double time_s) { return time_s == kNowhere; })) bad(i, "can run nowhere");
  }
}

class ListScheduler {
 public:
  ListScheduler(std::span<const ListTask> tasks, std::size_t devices) : tasks_(tasks), running_(devices) {
    for (const ListTask& task : tasks) {
      left_.push_back(task.units);
      shortest_s_.push_back(devices == 0 ? 0 : *std::ranges::min_element(task.unit_s));
    }
    schedule_.units.assign(tasks.size(), std::vector<std::size_t>(devices));
    is_running_.resize(tasks.size());
  }

  ListSchedule run() && {
    for (start_units(); !all_free(); start_units()) end_units();
    return std::move(schedule_);
  }

 private:
  struct Running {
    std::size_t task;
    double end_s;
  };

  void start_units() {
    for (std::size_t device = 0; device < running_.size(); ++device) {
      if (running_[device]) continue;
      const std::optional<std::size_t> task = longest_idle(device);
      if (!task) continue;
      running_[device] = Running{*task, now_s_ + tasks_[*task].unit_s[device]};
      is_running_[*task] = true;
      --left_[*task];
      ++schedule_.units[*task][device];
    }
  }

  // Of the tasks that can go on there.
  std::optional<std::size_t> longest_idle(std::size_t device) const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (left_[i] == 0 || is_running_[i] || tasks_[i].unit_s[device] == kNowhere) continue;
      if (!best || remaining_s(i) > remaining_s(*best)) best = i;
    }
    return best;
  }
  double remaining_s(std::size_t task) const { return static_cast<double>(left_[task]) * shortest_s_[task]; }

  bool all_free() const {
    return std::ranges::none_of(running_, [](const auto& running) { return running.has_value(); });
  }

  // All that end first.
  void end_units() {
    now_s_ = kNowhere;
    for (const auto& running : running_) now_s_ = running ? std::min(now_s_, running->end_s) : now_s_;
    for (auto& running : running_) {
      if (!running || running->end_s > now_s_) continue;
      is_running_[running->task] = false;
      running.reset();
    }
    schedule_.makespan_s = now_s_;
  }

  std::span<const ListTask> tasks_;
  std::vector<std::size_t> left_;                // [task] units that have not begun
  std::vector<double> shortest_s_;               // [task] of a unit
  std::vector<char> is_running_;                 // [task]
  std::vector<std::optional<Running>> running_;  // [device]
  double now_s_ = 0;
  ListSchedule schedule_;
};

}  // namespace

ListSchedule list_schedule(std::span<const ListTask> tasks, std::size_t devices) {
  check(tasks, devices);
  return ListScheduler(tasks, devices).run();
}

}  // namespace computron
