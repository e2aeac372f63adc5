// The heartbeat of a job that is watched, or of one that is not: then each call here does its work and nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "computron/runtime/heartbeat.h"
#include "computron/runtime/step.h"

namespace computron {

// Handed on by value. Belongs to the thread that owns MPI.
class JobHeartbeat {
 public:
  JobHeartbeat() = default;  // nobody watches
  // Borrows `heartbeat`.
  explicit JobHeartbeat(Heartbeat& heartbeat) : heartbeat_(&heartbeat) {}

  // To be called whenever the rank polls its queues.
  void poll() const {
    if (heartbeat_ != nullptr) heartbeat_->poll();
  }
  // Runs `work` with files, for which a disk may take its time: nobody takes this rank for one that hangs. `work` must
  // not touch MPI.
  void run_beside(const std::function<void()>& work) const {
    heartbeat_ != nullptr ? heartbeat_->run_beside(work) : work();
  }
  // Tells the watchdog of rank 0 which ranks work together: the groups of the job, [rank].
  void form_groups(std::vector<int> group_of_rank) const {
    if (heartbeat_ != nullptr) heartbeat_->watchdog().form_groups(std::move(group_of_rank));
  }
  // Tells the watchdog which step every rank of the group should get on with, and how long that should take; or that
  // there is none. On ranks other than 0 the group is 0.
  void expect(std::optional<StepId> step, double predicted_s = 0, int group = 0) const {
    if (heartbeat_ != nullptr) heartbeat_->watchdog().expect(step, predicted_s, group);
  }
  // Tells the watchdog of rank 0 that a step of the group is due and why none has been sent; empty: none is due.
  void expect_a_step(const std::string& why, int group = 0) const {
    if (heartbeat_ != nullptr) heartbeat_->watchdog().expect_a_step(why, group);
  }
  void enter(SignOfLife::Phase phase) const {
    if (heartbeat_ != nullptr) heartbeat_->enter(phase);
  }
  // Removes the files of all ranks' last events: the job ends as it should, and nobody will want to see them.
  void remove_records() const {
    if (heartbeat_ != nullptr) heartbeat_->recorder().remove_all();
  }
  // Null where nobody watches.
  FlightRecorder* recorder() const { return heartbeat_ != nullptr ? &heartbeat_->recorder() : nullptr; }

 private:
  Heartbeat* heartbeat_ = nullptr;
};

}  // namespace computron
