// Rank 0's scheduler: turns requests into steps. Pure: it reads no clock, calls no MPI and starts no thread, so a
// simulator or a test drives the same object that serves. Used by one thread.
//
//   submit() ──> waiting ──> running ──> next(): a Step ──> ranks ──> completed() ──> take_completions()
//
// One decision, next(). Requests that have arrived join the waiting queue of their model. The policy puts the models
// that have work into the run order, of which the first is to run now and those behind it are prefetched, and says
// in which order models have pages evicted. If fewer than `steps_in_flight` passes are under way, a pass is planned:
// of the first model, or, while its pages are still being copied, of another model whose pages are all resident and
// whose pass ends before the first one's has to begin. Planning a pass admits waiting requests as long as their
// cache will fit, chooses sequences and prefill chunks (pass_plan.h), makes room for their cache, where necessary by
// offloading or dropping other models' caches, and writes the fetches of all pages that the model lacks into the
// step: the pass trails them page by page. If no pass can be planned and a host link would soon run dry, a step of
// fetches alone is planned for the models of the run order and then for prefetch candidates. If there is nothing to
// do, the answer is until when to wait.
//
// Several passes are under way at once, each with sequences of its own, so that the stages of a pipeline work side by
// side and the next model's first pass stands behind the last one of the model before.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "computron/runtime/kv_geometry.h"
#include "computron/sched/arrival_queue.h"
#include "computron/sched/cost_model.h"
#include "computron/sched/model_work.h"
#include "computron/sched/open_requests.h"
#include "computron/sched/policy.h"
#include "computron/sched/stage_pool.h"

namespace computron {

// A model as the scheduler sees it, on all stages.
struct ModelShape {
  std::vector<const ShardLayout*> layouts;  // [stage]; borrowed, they outlive the scheduler
  std::vector<KvGeometry> caches;           // [stage]
  std::vector<TokenId> eos_tokens;
  bool pinned = false;  // its pages are never evicted
  int priority = 0;     // higher goes first, other things being equal (policy.h)
};

struct SchedulerOptions {
  int frames = 0;               // of every stage's pool
  int host_slots = 0;           // frames of host memory for caches that are offloaded
  int max_batch_tokens = 2048;  // of a pass
  int max_seqs = 64;            // running sequences of a model
  int steps_in_flight = 1;      // passes; a model's running sequences are split into a micro-batch a stage
  bool prefix_caching = false;  // sequences that begin with the same tokens use the same cache blocks for those
  // Most that a front end leaves waiting (is_full()); then a policy that plans ahead decides without knowing the rest.
  std::size_t max_waiting = 1 << 16;                       // requests
  std::size_t max_waiting_bytes = std::size_t{512} << 20;  // of their prompts and images
  double fetch_ahead_s = 0.02;  // fetches for later passes are issued this long before the link would run dry
  CostOptions costs = {};
};

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

// What the ranks of a stage report of a step, the slowest of them each.
struct StageTimes {
  double compute_s = 0;        // of the step's pass, without waiting
  std::size_t link_bytes = 0;  // copied so far
  double link_busy_s = 0;      // so far
};

class Scheduler {
 public:
  // ConfigError when a model and one block of its cache can never run in the pool of some stage beside the pinned
  // models, naming model and bytes.
  Scheduler(std::vector<ModelShape> models, std::vector<std::string> names, std::unique_ptr<Policy> policy,
            const SchedulerOptions& options);

  // A request becomes visible at its arrival_s. One whose cache can never fit, or an encoder's that no step is long
  // enough for, completes with an error at once. Its model is one of `models`.
  void submit(Request request);
  // The input has ended. What follows was held back until other requests are done, so a policy that plans ahead must
  // not wait for it: that would be waiting for itself.
  void note_input_end() { input_ended_ = true; }
  // No request follows.
  void close_input() { input_ended_ = input_closed_ = true; }

  // Requests submitted and not done.
  std::size_t open_requests() const { return open_.count(); }
  // Seconds from now until a new request for the model would be done, as predicted: behind everything open, each
  // request counted whole (open_requests.h), and behind the transfers of what the model and open ones lack, where it
  // lacks pages itself. Where everything is resident, each open request adds its work. Cheap: looks at models with open
  // requests only.
  double quote_s(ModelId model, const Request& request, double now_s) const;
  // Takes back requests for the model that no step has had, the youngest first, at most `n`: somebody else will serve
  // them. The requests of one id, which have one arrival and one model, stay together: all of them go, or none where
  // one has begun or is done, or where they are too many. Preempted and admitted ones stay.
  std::vector<Request> recall(ModelId model, std::size_t n);

  // What to do now. A PlannedStep must be sent and, when all ranks have reported it, handed to completed(). `now_s` in
  // seconds after the start of the job, never less than at the call before. Error{kInternal} for a bug in here.
  Decision next(double now_s);
  // Every rank has executed the step; `results` are the last stage's. Steps complete in the order planned. `times`, by
  // stage, may be missing: predictions then stay as they are. Error{kInternal} for another step or other results than
  // were asked for.
  void completed(StepId step, PassResults results, double now_s, std::span<const StageTimes> times = {});

  // Of requests that have ended since the last call, in the order in which they ended.
  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  // The policy plans ahead, and makes no decision before the input has ended or no more of it fits.
  bool waits_for_input() const { return policy_->plans_ahead() && !begun_ && !input_ended_ && !is_full(); }
  // Whether a request that has arrived by `now_s` is not done.
  bool has_work(double now_s) const;
  std::size_t waiting() const;        // requests that no step has begun
  std::size_t waiting_bytes() const;  // of host memory
  // A front end should submit no more for now.
  bool is_full() const { return waiting() >= options_.max_waiting || waiting_bytes() >= options_.max_waiting_bytes; }
  std::optional<ModelId> running_model() const { return active_.model; }
  // Of the model's pages on all stages: how many, 0 to 1, are resident once what is planned has been done.
  double resident_ratio(ModelId model) const;
  const CacheUse& cache_use(ModelId model) const { return work_[model].sequences().cache_use(); }
  const ShardLayout& layout(ModelId model, std::size_t stage) const { return *models_[model].layouts[stage]; }
  const CostModel& costs() const { return costs_; }
  const SchedulerOptions& options() const { return options_; }
  std::size_t models() const { return models_.size(); }
  // When what has been planned will have been executed; 0 if nothing is in flight.
  double predicted_end_s() const { return in_flight_.empty() ? 0 : in_flight_.back().end_s; }
  // Steps that may be planned and not completed, at most.
  static int max_steps_in_flight(int steps_in_flight) { return steps_in_flight + kMaxFetchSteps; }

 private:
  static constexpr int kMaxFetchSteps = 2;  // steps of fetches only, beside the passes

  struct InFlight {
    StepId id;
    ModelId model;
    int rows;                                // of the pass; 0: fetches only
    std::vector<ModelWork::Handle> members;  // sequences of the pass
    double end_s;                            // predicted
  };
  // What a stage's host link has been given to copy, and when that will have been copied.
  struct HostLink {
    std::size_t issued = 0;        // bytes so far
    double free_s = 0;             // predicted: all of them are copied
    std::vector<double> landed_s;  // [model] predicted: the last of its pages issued so far is resident
    std::size_t seen_bytes = 0;    // copied, as last reported
    double seen_busy_s = 0;        // likewise
  };

  void check_fits(ModelId model) const;
  bool can_ever_fit(ModelId model, int blocks) const;
  void refuse(const Request& request, std::string message);
  void admit_arrivals(double now_s);
  void decide_run_order(double now_s);
  std::vector<ModelView> views(double now_s) const;
  double compute_s(const ModelView& view, const Backlog& backlog) const;

  // Compute.
  bool plan_pass(PlannedStep& planned, double now_s);
  bool plan_pass_of(ModelId model, PlannedStep& planned, double now_s);
  std::optional<ModelId> model_to_fill_in(double now_s) const;
  bool fetches_go_on(ModelId first) const;
  bool is_ready(ModelId model, double now_s) const;
  bool can_grow(ModelId model, int blocks) const;
  PassPlan choose(ModelId model);
  PassLimits limits_of_pass(ModelId model, bool exceeds_pool) const;
  int prompt_tokens_of_pass(ModelId model) const;
  bool waits_for_micro_batch(ModelId model, const PassPlan& pass) const;
  void activate(ModelId model, double now_s);
  void admit(ModelId model);

  // Caches.
  int pinned_beside(ModelId model, std::size_t stage) const;
  int frames_in_use(ModelId model, std::size_t stage) const;
  int caches_beside(ModelId model, std::size_t stage) const;
  int wanted_caches_beside(ModelId model, std::size_t stage) const;
  int blocks_beside_others(ModelId model) const;
  int blocks_evicting_only(ModelId model, std::span<const ModelId> evictable) const;
  bool exceeds_pool(ModelId model, int blocks) const;
  int frames_short(ModelId model, int blocks, std::size_t stage) const;
  bool evict_caches_for(ModelId model, int blocks, PlannedStep& planned);
  std::vector<ModelId> caches_evictable_for(ModelId model) const;
  void evict_cache(ModelId model, PlannedStep& planned);
  bool cheaper_to_offload(ModelId model) const;
  void place_cache(ModelId model, int blocks, PlannedStep& planned);
  void trim_caches(std::optional<ModelId> runs, PlannedStep& planned);
  void trim_cache(ModelId model, PlannedStep& planned);
  bool keeps_cached_blocks(std::optional<ModelId> runs) const;

  // Links.
  bool plan_prefetch_step(PlannedStep& planned, double now_s);
  void fetch_what_is_missing(PlannedStep& planned, double now_s);
  void prefetch(PlannedStep& planned, double now_s);
  bool prefetch(std::size_t stage, PlannedStep& planned, ModelId model, std::span<const ModelId> evictable, int reserve,
                double now_s);
  bool wants_pages() const;
  void issue(std::size_t stage, std::size_t first, PlannedStep& planned, double now_s);
  void issue(std::size_t stage, ModelId model, std::size_t bytes, double now_s);
  void observe(const InFlight& step, std::span<const StageTimes> times, double now_s);
  double wait_s(ModelId model, double now_s) const;
  double fetch_horizon_s(double now_s) const;
  double link_wakes_s(double now_s) const;
  bool misses_pages(ModelId model) const;
  int cache_to_come(ModelId model, std::size_t stage) const;
  // Models that may lose pages to this one, the first to lose first: those that run later or not at all.
  std::vector<ModelId> evictable_for(ModelId model) const;

  double missing_transfers_s(ModelId model, double now_s) const;
  void count_open_anew(ModelId model);
  Decision seal(PlannedStep planned);
  void close(SequenceId sequence);

  // Never change.
  std::vector<ModelShape> models_;
  std::vector<std::string> names_;  // [model] for error messages
  std::unique_ptr<Policy> policy_;
  SchedulerOptions options_;

  // Changed by submit() and close_input(); next() takes from `arriving_` what has arrived.
  ArrivalQueue arriving_;
  bool input_ended_ = false, input_closed_ = false;

  // Made anew by every next(), and read by it alone.
  std::vector<ModelId> run_order_;                     // models with work; the first should run now
  std::vector<ModelId> eviction_order_;                // models that may lose pages, the first to lose first
  std::vector<Policy::PrefetchCandidate> candidates_;  // models without work that will probably have some

  // Changed where next() plans a step: what will be when all planned steps have been executed.
  bool begun_ = false;            // a decision has been made
  ActiveModel active_;            // whose passes are planned, but for those of models that fill in
  std::vector<StagePool> pools_;  // [stage] frames and what is in them
  std::vector<bool> swapping_;    // [model] fetches have been issued since it last ran
  StepId last_step_ = 0;
  SequenceId last_sequence_ = 0;

  // Changed by next() when it plans, and by completed() when ranks report.
  std::vector<ModelWork> work_;       // [model] requests, sequences, cache blocks
  std::vector<HostLink> host_links_;  // [stage]
  std::deque<InFlight> in_flight_;    // planned and not reported, in order
  std::vector<SequenceId> to_close_;  // ended or preempted; the next step tells the ranks
  std::vector<Completion> completions_;
  OpenRequests open_;
  CostModel costs_;  // follows the times that ranks report
};

}  // namespace computron
