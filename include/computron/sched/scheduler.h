// Rank 0's scheduler: turns requests into steps. Pure: it reads no clock, calls no MPI and starts no thread, so a
// simulator or a test drives the same object that serves. Used by one thread.
//
//   submit() ──> waiting ──> running ──> next(): a Step ──> ranks ──> completed() ──> take_completions()
//
// One decision, next(). Requests that have arrived join the waiting queue of their model, and leave it where late ones
// are dropped (deadlines.h). The policy puts the models that have work into the run order, of which the first is to run
// now and those behind it are prefetched, and says in which order models have pages evicted. If fewer than
// `steps_in_flight` passes are under way, a pass is planned: of the first model, or, while its pages are still being
// copied, of another model whose pages are all resident and whose pass ends before the first one's has to begin.
// Where models differ in their adapters alone, sequences of several of them ride in one pass (pass_planner.h).
// Planning a pass admits waiting requests as long as their cache will fit, chooses sequences and prefill chunks
// (pass_plan.h), makes room for their cache, where necessary by offloading or dropping other models' caches, and writes
// the fetches of all pages that the model lacks into the step: the pass trails them page by page. If no pass can be
// planned and a host link would soon run dry, a step of fetches alone is planned for the models of the run order and
// then for prefetch candidates. If there is nothing to do, the answer is until when to wait.
//
// Several passes are under way at once, each with sequences of its own, so that the stages of a pipeline work side by
// side and the next model's first pass stands behind the last one of the model before.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "computron/sched/aging.h"
#include "computron/sched/arrival_queue.h"
#include "computron/sched/cache_allocator.h"
#include "computron/sched/open_requests.h"
#include "computron/sched/pass_planner.h"
#include "computron/sched/prefetcher.h"
#include "computron/sched/scheduler_state.h"

namespace computron {

// A step to send, with the digests that the ranks of each stage must report after it.
struct PlannedStep {
  Step step;
  std::vector<StateDigest> expected;  // [stage]
  std::vector<ModelId> swaps;         // models of which fetching begins here, for the first time since they last ran
  std::vector<RequestId> begun = {};  // requests whose first tokens are computed here, or computed again
};
struct WaitUntil {
  double time_s;  // of the clock that next() is given; infinity: for submit, note_input_end, close_input or completed
};
struct AllDone {};
using Decision = std::variant<PlannedStep, WaitUntil, AllDone>;

constexpr int kMaxFetchSteps = 2;  // steps of fetches only, beside the passes
// Steps that may be planned and not completed, at most, where that many passes may.
constexpr int max_steps_in_flight(int steps_in_flight) { return steps_in_flight + kMaxFetchSteps; }

class Scheduler {
 public:
  // ConfigError when a model and one block of its cache can never run in the pool of some stage beside the pinned
  // models, naming model and bytes.
  Scheduler(std::vector<ModelShape> models, std::vector<std::string> names, std::unique_ptr<Policy> policy,
            const SchedulerOptions& options);

  Scheduler(const Scheduler&) = delete;  // its parts borrow each other
  Scheduler& operator=(const Scheduler&) = delete;

  // A request becomes visible at its arrival_s. One whose cache can never fit, or an encoder's that no step is long
  // enough for, completes with an error at once. Its model is one of `models`.
  void submit(Request request);
  // The input has ended. What follows was held back until other requests are done, so a policy that plans ahead must
  // not wait for it: that would be waiting for itself.
  void note_input_end() { input_ended_ = true; }
  // No request follows.
  void close_input() { input_ended_ = input_closed_ = true; }

  // Requests submitted and not done.
  const OpenRequests& open() const { return open_; }
  // Seconds from now until a new request for the model would be done, as predicted: behind its arrival and everything
  // open that does not come behind it (open_requests.h) but what is computed of the passes in flight, and behind the
  // transfers of what the model and open ones lack, where it lacks pages itself. Where everything is resident, each
  // open request adds its work. Infinity where submit() would refuse it. Cheap: looks at models with open requests and
  // passes in flight only.
  double quote_s(ModelId model, const Request& request, double now_s) const;
  // Takes back requests for the model that no step has had, the youngest first, at most `n`: somebody else will serve
  // them. The requests of one id, which have one arrival and one model, stay together: all of them go, or none where
  // one has begun or is done, where they are too many, or where `accepts` refuses one: it is whether the other could
  // serve a request. Preempted and admitted ones stay.
  std::vector<Request> recall(ModelId model, std::size_t n, const Accepts& accepts = {});
  // Why submit() would refuse a request that needs a pass; empty: it would not.
  std::string why_refused(const Request& request, ModelId model) const;

  // What to do now. A PlannedStep must be sent and, when all ranks have reported it, handed to completed(). `now_s` in
  // seconds after the start of the job, never less than at the call before. Error{kInternal} for a bug in here.
  Decision next(double now_s);
  // Every rank has executed the step; `results` are the last stage's. Steps complete in the order planned. `times`, by
  // stage, may be missing: predictions then stay as they are. Error{kInternal} for another step or other results than
  // were asked for.
  void completed(StepId step, PassResults results, double now_s, std::span<const StageTimes> times = {});

  // Of requests that have ended since the last call, in the order in which they ended.
  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  bool plans_ahead() const { return state_->agenda.policy().plans_ahead(); }
  // The policy plans ahead, and makes no decision before the input has ended or no more of it fits, or a request has
  // arrived that is more urgent than batch work.
  bool waits_for_input(double now_s) const {
    return plans_ahead() && !begun_ && !input_ended_ && !is_full() && now_s < interactive_s_;
  }
  // Whether a request that has arrived by `now_s` is not done.
  bool has_work(double now_s) const;
  // Requests that no step has begun.
  std::size_t waiting() const { return arriving_.size() + state_->work.waiting(); }
  std::size_t waiting(ModelId model) const { return arriving_.size(model) + state_->work[model].waiting().size(); }
  // What is held for later: requests that no step has begun, with host memory of theirs, and preempted sequences, which
  // are many only where more urgent ones keep coming; 0 of these where all are equally urgent.
  struct Held {
    std::size_t waiting = 0, waiting_bytes = 0, set_aside = 0;
  };
  Held held() const {
    return {waiting(), arriving_.bytes() + state_->work.waiting_bytes(), any_urgency_ ? state_->work.preempted() : 0};
  }
  // A front end should submit no more for now.
  bool is_full() const {
    const Held held = this->held();
    return held.waiting + held.set_aside >= state_->options.max_waiting ||
           held.waiting_bytes >= state_->options.max_waiting_bytes;
  }
  std::optional<ModelId> running_model() const { return active_.model; }
  // Of the model's pages on all stages: how many, 0 to 1, are resident once what is planned has been done.
  double resident_ratio(ModelId model) const;
  const CacheUse& cache_use(ModelId model) const { return state_->work[model].sequences().cache_use(); }
  const ShardLayout& layout(ModelId model, std::size_t stage) const { return state_->layout(model, stage); }
  const CostModel& costs() const { return state_->costs; }
  CostModel& costs() { return state_->costs; }  // to tell it what is known before the first request
  const SchedulerOptions& options() const { return state_->options; }
  // When what has been planned will have been executed; 0 if nothing is in flight.
  double predicted_end_s() const { return state_->computed_s(0); }

 private:
  void decide_run_order(double now_s);
  std::optional<PlannedStep> plan_pass(double now_s);
  // `filler`: where the model fills in.
  std::optional<PlannedStep> plan_pass_of(ModelId model, const std::optional<PassPlanner::Filler>& filler,
                                          double now_s);
  std::optional<PlannedStep> plan_fetch_step(double now_s);
  PlannedStep seal(PlannedStep planned);

  std::vector<std::string> names_;         // [model] for error messages
  std::unique_ptr<SchedulerState> state_;  // borrowed by the next three
  CacheAllocator caches_;
  Prefetcher prefetcher_;
  PassPlanner passes_;

  ArrivalQueue arriving_;  // next() takes from it what has arrived
  Aging aging_;
  bool any_urgency_ = false;  // requests of another priority than 0 were submitted
  double interactive_s_ = std::numeric_limits<double>::infinity();  // when the first one of a lower one arrives
  OpenRequests open_;
  bool input_ended_ = false, input_closed_ = false;
  bool begun_ = false;  // a decision has been made
  ActiveModel active_;  // whose passes are planned, but for those of models that fill in
  StepId last_step_ = 0;
  std::vector<Completion> completions_;
};

}  // namespace computron
