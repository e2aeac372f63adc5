// Keeps the host links busy: which pages are fetched when, and when they will have been copied.
//
// A pass is sent with every fetch that its model lacks. Beyond that pages of the run order's models are fetched in that
// order, as long as a link would otherwise run dry a short time beyond what is being computed, and frames are to be had
// that nobody wants sooner; then those of prefetch candidates. Bytes issued less bytes that ranks report as copied say
// when each link will be through.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "computron/sched/cache_allocator.h"
#include "computron/sched/scheduler_state.h"

namespace computron {

// What the ranks of a stage report of a step, the slowest of them each.
struct StageTimes {
  double compute_s = 0;        // of the step's pass, without waiting
  std::size_t link_bytes = 0;  // copied so far, as the layouts count it (ShardLayout::link_bytes)
  double link_busy_s = 0;      // so far
};

class Prefetcher {
 public:
  // Borrows both.
  Prefetcher(SchedulerState& state, CacheAllocator& caches);

  // Predictions. Seconds until the last page that the model's pass needs is resident, if nothing else is copied in
  // between.
  double wait_s(ModelId model, double now_s) const;
  // Until the links are through with what the model and `others` lack, if it lacks pages; otherwise as wait_s().
  double wait_behind_s(ModelId model, const std::set<ModelId>& others, double now_s) const;
  // Whether all pages and the cache are there, copied.
  bool is_ready(ModelId model, double now_s) const;
  // Whether the pages that the model of the run order lacks can be fetched without a pass of it: frames are to be had
  // beside those for its cache. If not, nothing is won by waiting.
  bool can_go_on(ModelId model) const;
  // When the next fetch is due; infinity if pages are wanted by nobody.
  double wakes_s(double now_s);

  // Planning. The pages that the model lacks for its pass in step `step`, behind the changes of caches that are planned
  // already; `again`: another pass of it will follow.
  void fetch_missing(StepId step, ModelId model, bool again, double now_s);
  // Fetches ahead what is due.
  void prefetch(double now_s);
  // A step of fetches alone, with frames that caches do not need given back: the model that it is for, if it does
  // anything.
  std::optional<ModelId> plan_fetch_step(double now_s);
  // Models of which fetching has begun since the last call, for the first time since forget_swap().
  std::vector<ModelId> take_swaps() { return std::exchange(swaps_, {}); }
  // The next fetch for the model begins a new swap.
  void forget_swap(ModelId model) { swapping_[model] = false; }

  // A step has been executed: predictions follow what the ranks report of it.
  void observe(const StepInFlight& step, std::span<const StageTimes> times, double now_s);

 private:
  // What a stage's host link has been given to copy, and when that will have been copied.
  struct HostLink {
    ModelList in_flight;           // landed_s may change: it is not past, or was not at the last report
    std::size_t issued = 0;        // link bytes so far
    double free_s = 0;             // predicted: all of them are copied
    std::vector<double> landed_s;  // [model] predicted: the last of its pages issued so far is resident
    std::size_t seen_bytes = 0;    // copied, as last reported
    double seen_busy_s = 0;        // likewise
  };
  static void land(HostLink& link, double before_s, double now_s);
  double horizon_s(double now_s) const { return state_.computed_s(now_s) + state_.options.fetch_ahead_s; }
  bool wants_pages();
  void prefetch_stage(std::size_t stage, double now_s);
  bool prefetch_model(std::size_t stage, ModelId model, Evictable& evictable, int reserve, double now_s);
  void issue_fetches(std::size_t stage, std::size_t first, double now_s);
  void issue(std::size_t stage, ModelId model, std::size_t bytes, double now_s);
  void lands_last(std::size_t stage, ModelId model);

  SchedulerState& state_;
  CacheAllocator& caches_;
  std::vector<HostLink> links_;  // [stage]
  std::vector<bool> swapping_;   // [model] fetches have been issued since forget_swap()
  std::vector<ModelId> swaps_;
};

}  // namespace computron
