// Turns requests into steps. Pure: it reads no clock, calls no MPI and starts no thread, so a simulator or a test
// drives the same object that serves.
//
//   submit(request) → queue of its model → agenda → steps → completed(step, rows) → completions
//
// The policy puts the models that have work into an order, the agenda. The links serve it strictly: what is missing of
// its first model is fetched first, then of its second, a short time ahead, into frames of models that come later or
// not at all. Compute serves the first model of the agenda, unless that would stand still for pages while another's are
// all there. A pass takes all fetches that its model still misses into its own step and trails them page by page.
//
// Up to `steps_in_flight` passes are on their way, each with sequences of its own, so that the stages of a pipeline work
// side by side and the next model's first pass stands behind the last one of the model before.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "computron/runtime/kv_geometry.h"
#include "computron/sched/cost_model.h"
#include "computron/sched/model_work.h"
#include "computron/sched/policy.h"
#include "computron/sched/stage_pool.h"

namespace computron {

// A model as the scheduler sees it, on all stages.
struct ModelShape {
  std::vector<const Image*> images;  // [stage]
  std::vector<KvGeometry> caches;    // [stage]
  std::vector<TokenId> eos_tokens;
  bool pinned = false;  // its pages stay once they are there
  int priority = 0;
};

struct SchedulerOptions {
  int frames = 0;      // of every stage's pool
  int host_slots = 0;  // frames of host memory for caches that are swapped out
  int max_batch_tokens = 2048;
  int max_seqs = 64;
  int steps_in_flight = 1;      // passes; a model's sequences are shared out over the stages
  bool share_prefixes = false;  // sequences that begin with the same tokens share the cache of those
  // What a front end holds in it; a policy that plans ahead waits no longer.
  std::size_t max_waiting = 1 << 16;                        // requests
  std::size_t max_waiting_bytes = std::size_t{512} << 20;  // of their prompts and images
  double fetch_ahead_s = 0.02;  // fetches for later passes are issued this long before the link would run dry
  CostOptions costs = {};
};

// A step to send, with the digests that the ranks of each stage must report after it.
struct PlannedStep {
  Step step;
  std::vector<StateDigest> expected;  // [stage]
  std::vector<ModelId> swaps;         // models of which fetching begins here since they last ran
  std::vector<RequestId> begun = {};  // requests whose first tokens are computed here, or are so once more
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
  // enough for, completes with an error at once.
  void submit(Request request);
  // The input has ended. What follows was held back until other requests are done, so a policy that plans ahead must
  // not wait for it: that would be waiting for itself.
  void note_input_end() { input_ended_ = true; }
  // No request follows.
  void close_input() { input_ended_ = input_closed_ = true; }

  // What to do now. A PlannedStep must be sent and, when all ranks have reported it, handed to completed().
  Decision next(double now_s);
  // Every rank has executed the step; `results` are the last stage's. Steps complete in the order planned. `times`, by
  // stage, may be missing: predictions then stay as they are.
  void completed(StepId step, PassResults results, double now_s, std::span<const StageTimes> times = {});

  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  // The policy plans ahead, and makes no decision before the input has ended or no more of it fits.
  bool waits_for_input() const { return policy_->plans_ahead() && !begun_ && !input_ended_ && !is_full(); }
  // Whether a request that has arrived by `now_s` is not done.
  bool has_work(double now_s) const;
  std::size_t waiting() const;  // requests that no step has begun
  std::size_t waiting_bytes() const;
  bool is_full() const {
    return waiting() >= options_.max_waiting || waiting_bytes() >= options_.max_waiting_bytes;
  }
  std::optional<ModelId> running_model() const { return turn_.model; }
  // Share of the model's pages that are in the pools of all stages once what is planned has been done.
  double resident_share(ModelId model) const;
  const CacheUse& cache_use(ModelId model) const { return work_[model].cache_use(); }
  const Image& image(ModelId model, std::size_t stage) const { return *models_[model].images[stage]; }
  const CostModel& costs() const { return costs_; }
  // When what has been planned will have been executed; 0 if nothing is in flight.
  double predicted_end_s() const { return in_flight_.empty() ? 0 : in_flight_.back().end_s; }
  // Steps that may be planned and not completed, at most.
  static int max_steps_in_flight(int steps_in_flight) { return steps_in_flight + kMaxFetchSteps; }

 private:
  static constexpr int kMaxFetchSteps = 2;  // steps of fetches only, beside the passes

  struct InFlight {
    StepId id;
    ModelId model;
    int rows;  // 0: fetches only
    std::vector<ModelWork::Handle> members;
    double end_s;  // predicted
  };
  // What a stage's link has been given and what is known of its getting there.
  struct Link {
    std::size_t issued = 0;
    double free_s = 0;               // predicted
    std::vector<double> landed_s;    // [model] predicted
    std::size_t seen_bytes = 0;      // of the last report
    double seen_busy_s = 0;
  };

  void check_fits(ModelId model) const;
  bool can_ever_fit(ModelId model, int blocks) const;
  void refuse(const Request& request, std::string message);
  void admit_arrivals(double now_s);
  void set_agenda(double now_s);
  std::vector<ModelView> views(double now_s) const;
  double compute_s(const ModelView& view, const ModelWork::Backlog& backlog) const;

  // Compute.
  bool plan_pass(PlannedStep& planned, double now_s);
  bool plan_pass_of(ModelId model, PlannedStep& planned, double now_s);
  std::optional<ModelId> model_to_fill_in(double now_s) const;
  bool fetches_go_on(ModelId first) const;
  bool is_ready(ModelId model, double now_s) const;
  bool can_grow(ModelId model, int blocks) const;
  ModelWork::Pass choose(ModelId model);
  ModelWork::Limits limits_of_pass(ModelId model, bool streams) const;
  int prompt_tokens_of_pass(ModelId model) const;
  bool waits_for_its_share(ModelId model, const ModelWork::Pass& pass) const;
  void begin_turn(ModelId model, double now_s);
  void admit(ModelId model);

  // Caches.
  int pinned_beside(ModelId model, std::size_t stage) const;
  int frames_in_use(ModelId model, std::size_t stage) const;
  int caches_beside(ModelId model, std::size_t stage) const;
  int wanted_caches_beside(ModelId model, std::size_t stage) const;
  int blocks_beside_others(ModelId model) const;
  int blocks_without_victims(ModelId model, std::span<const ModelId> victims) const;
  bool streams(ModelId model, int blocks) const;
  int frames_short(ModelId model, int blocks, std::size_t stage) const;
  bool make_room(ModelId model, int blocks, PlannedStep& planned);
  std::vector<ModelId> models_with_cache_beside(ModelId model) const;
  void swap_out_cache(ModelId model, PlannedStep& planned);
  bool cheaper_to_spill(ModelId model) const;
  void settle_cache(ModelId model, int blocks, PlannedStep& planned);
  void trim_caches(std::optional<ModelId> runs, PlannedStep& planned);
  void trim_cache(ModelId model, PlannedStep& planned);
  bool keeps_prefixes(std::optional<ModelId> runs) const;

  // Links.
  bool plan_prefetch_step(PlannedStep& planned, double now_s);
  void fetch_what_is_missing(PlannedStep& planned, double now_s);
  void prefetch(PlannedStep& planned, double now_s);
  bool prefetch(std::size_t stage, PlannedStep& planned, ModelId model, std::span<const ModelId> victims, int reserve,
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
  std::vector<ModelId> victims_for(ModelId model) const;

  Decision seal(PlannedStep planned);
  void close(SequenceId sequence);

  std::vector<ModelShape> models_;
  std::vector<std::string> names_;
  std::unique_ptr<Policy> policy_;
  SchedulerOptions options_;
  CostModel costs_;
  std::vector<StagePool> pools_;  // [stage]
  std::vector<Link> links_;       // [stage]

  struct Later {
    bool operator()(const Request& a, const Request& b) const { return ModelWork::earlier(b, a); }
  };
  std::vector<Request> arriving_;  // a heap: the first to arrive in front
  std::size_t arriving_bytes_ = 0;
  std::vector<ModelWork> work_;  // [model]
  bool input_ended_ = false, input_closed_ = false;
  bool begun_ = false;  // a decision has been made

  Turn turn_;
  std::vector<ModelId> agenda_;   // of the decision being made
  std::vector<Policy::Guess> guesses_;
  std::vector<ModelId> victims_;  // everybody who may lose pages, first to lose first
  std::vector<bool> swapping_;    // [model] fetches have been issued since it last ran
  std::vector<SequenceId> to_close_;
  std::deque<InFlight> in_flight_;
  StepId last_step_ = 0;
  SequenceId last_sequence_ = 0;
  std::vector<Completion> completions_;
};

}  // namespace computron
