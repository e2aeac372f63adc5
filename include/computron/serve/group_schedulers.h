// The schedulers of a job's groups, under the dispatcher that gives each of them its requests. On rank 0.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "computron/dispatch/dispatcher.h"
#include "computron/serve/job.h"

namespace computron {

class GroupSchedulers {
 public:
  // What a group's scheduler is told before anything has run.
  using Lesson = std::function<void(int group, CostModel& costs)>;

  // Borrows `job`. They predict from `costs`, if given, and from what `teach` tells them, if anything, until they have
  // seen more.
  explicit GroupSchedulers(const Job& job, const std::optional<CostOptions>& costs = {}, const Lesson& teach = {});
  GroupSchedulers(const GroupSchedulers&) = delete;  // the dispatcher borrows the schedulers
  GroupSchedulers& operator=(const GroupSchedulers&) = delete;

  Dispatcher& dispatcher() { return dispatcher_; }

 private:
  std::vector<std::unique_ptr<Scheduler>> schedulers_;  // [group]
  Dispatcher dispatcher_;
};

}  // namespace computron
