// Several groups of ranks, each with a scheduler of its own, behind one front: gives every request to a group that
// holds its model. Pure, like the schedulers: it reads no clock, calls no MPI and starts no thread; used by one thread.
//
//   submit() ──> held until it arrives ──> the group with the least cost ──> its Scheduler ──> next(group) ──> ranks
//                                             │          ^                        │
//                                             └─ recall ─┘ an idle group steals   └── completed(group) ──> completions
//
// A model lives in one group or in several. Models have two numbers: the job's, which requests and completions bear
// here, and the group's own, which its scheduler, steps and ranks use. With one group every call passes straight
// through: the steps are those of the scheduler alone, bit for bit. Unless late requests are rejected: then one group
// is like several, and what is predicted to be late when it would be given to its group ends at once.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "computron/dispatch/rejection.h"
#include "computron/dispatch/rotation.h"
#include "computron/dispatch/serving_group.h"
#include "computron/sched/scheduler.h"

namespace computron {

class Dispatcher {
 public:
  // The job has `models` models; each is in a group at least, and in none twice. The schedulers have the same policy
  // and the same OnLate, have decided nothing yet, and from now on are changed through here alone.
  Dispatcher(std::vector<DispatchGroup> groups, std::size_t models);
  // One group that holds all models. Requests may have been submitted to it already, and its input closed.
  explicit Dispatcher(Scheduler& scheduler);

  // As Scheduler's, with the job's numbers of models. Requests of one id (a line of the input) are submitted one behind
  // the other; they go to the same group.
  void submit(Request request);
  void note_input_end();
  void close_input();
  bool is_full() const;
  std::size_t waiting() const;
  std::size_t waiting_bytes() const;
  std::size_t set_aside() const { return set_aside_; }  // preempted requests: they take room beside those that wait
  bool waits_for_input(double now_s) const;
  bool has_work(double now_s) const;
  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  // The most of any group.
  double resident_ratio(ModelId model) const;
  // The latest of any group.
  double predicted_end_s() const;

  std::size_t groups() const { return serving_.size(); }
  const Scheduler& scheduler(std::size_t group) const { return serving_[group].scheduler(); }
  ModelId job_model(std::size_t group, ModelId local) const { return serving_[group].job_model(local); }

  // The next group, in rotation, that has something to decide at `now_s`: since it was last asked a request, the end of
  // the input or a report has come for it, or the time that it named; or it has planned a step and may plan another.
  // Requests that have arrived are given to their groups here. The same group until next() is called.
  std::optional<std::size_t> due(double now_s);
  // When due() will name a group if nothing comes before: in the past, now; infinity: never.
  double due_s() const;
  // One decision of the group, as Scheduler::next(). AllDone: it is idle, and nothing is held that it may get; another
  // group may still be at work (all_done()).
  Decision next(std::size_t group, double now_s);
  // As Scheduler's.
  void completed(std::size_t group, StepId step, PassResults results, double now_s,
                 std::span<const StageTimes> times = {});
  // Every group's last decision was AllDone, and nothing came since.
  bool all_done() const { return groups_done_ == serving_.size(); }

 private:
  struct State {
    std::vector<std::size_t> partners = {};  // groups that share a model with it
    bool done = false;                       // its last decision was AllDone
    Scheduler::Held held;                    // as its scheduler says
    std::size_t offered = 0;                 // requests that waited when a partner was woken to steal some
    double stole_s = -1;                     // when it last did
  };

  // The policy wants to know all batch requests first, and does not yet.
  bool collects() const { return plans_ahead_ && !planned_ && holds_; }
  void release(double now_s);
  void plan();
  std::size_t choose(const Request& request) const;
  void give(std::size_t group, Request request, bool accepted = false);
  void steal(std::size_t thief);
  void offer(std::size_t group);
  void pass_on_input_end();
  void refresh(std::size_t group);
  void wake(std::size_t group);

  std::vector<ServingGroup> serving_;
  std::vector<State> states_;                    // [group]
  std::vector<std::vector<std::size_t>> hosts_;  // [the job's model] groups that hold it
  bool plans_ahead_;                             // the policy does
  Rejection rejection_;
  bool holds_;            // requests, until they arrive
  bool planned_ = false;  // and all that was known has been given to the groups

  double now_s_ = 0;                                 // the latest time that was told
  ArrivalQueue held_, held_interactive_;             // not given to a group yet
  bool input_ended_ = false, input_closed_ = false;  // as told
  bool end_passed_on_ = false, close_passed_on_ = false;
  std::optional<RequestId> line_;  // that was given last, and to whom
  std::size_t line_group_ = 0;

  Rotation turns_;  // of the groups
  std::size_t groups_done_ = 0;
  std::size_t waiting_ = 0, waiting_bytes_ = 0, set_aside_ = 0;  // of all groups
  std::vector<Completion> completions_;
};

}  // namespace computron
