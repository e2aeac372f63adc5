// The scheduler's half that keeps the host links busy: what to fetch ahead, and when each link runs dry.
#include <algorithm>
#include <limits>

#include "computron/sched/scheduler.h"

namespace computron {

// Seconds until the last page that the model's pass needs is resident, if nothing else is copied in between.
double Scheduler::wait_s(ModelId model, double now_s) const {
  double longest_s = 0;
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    const HostLink& link = host_links_[stage];
    const std::size_t missing = pools_[stage].missing_bytes(model);
    const double issued_s = missing > 0 ? link.free_s : link.landed_s[model];
    longest_s = std::max(longest_s, std::max(issued_s - now_s, 0.0) + costs_.transfer_s(stage, missing));
  }
  return longest_s;
}

std::vector<ModelId> Scheduler::evictable_for(ModelId model) const {
  const auto end = std::find(run_order_.begin(), run_order_.end(), model);
  std::vector<ModelId> evictable;
  for (const ModelId other : eviction_order_) {
    if (other != model && std::find(run_order_.begin(), end, other) == end) evictable.push_back(other);
  }
  return evictable;
}

// Frames of cache that the model will want when it runs beyond what it has.
int Scheduler::cache_to_come(ModelId model, std::size_t stage) const {
  const StagePool& pool = pools_[stage];
  const int wanted = models_[model].caches[stage].frames_for(work_[model].blocks_expected(options_.max_seqs));
  const int most = std::max(options_.frames - pinned_beside(model, stage) - pool.pages(model), 0);
  return std::max(std::min(wanted, most) - pool.cache_frames(model), 0);
}

// Until when the links should have work: a while beyond the end of what is being computed.
double Scheduler::fetch_horizon_s(double now_s) const {
  const double computing_s = in_flight_.empty() ? now_s : std::max(now_s, in_flight_.back().end_s);
  return computing_s + options_.fetch_ahead_s;
}

double Scheduler::link_wakes_s(double now_s) const {
  double wakes_s = std::numeric_limits<double>::infinity();
  if (!wants_pages()) return wakes_s;
  if (run_order_.empty()) wakes_s = now_s + options_.fetch_ahead_s;  // silence goes by, and the candidates change
  for (const HostLink& link : host_links_) {
    const double dry_s = link.free_s - options_.fetch_ahead_s / 2;
    if (dry_s > now_s) wakes_s = std::min(wakes_s, dry_s);
  }
  return wakes_s;
}

bool Scheduler::plan_prefetch_step(PlannedStep& planned, double now_s) {
  const bool due = std::any_of(host_links_.begin(), host_links_.end(), [&](const HostLink& link) {
    return link.free_s <= fetch_horizon_s(now_s) - options_.fetch_ahead_s / 2;
  });
  if (!due || !wants_pages()) return false;
  trim_caches(std::nullopt, planned);
  prefetch(planned, now_s);
  const bool anything = std::any_of(planned.step.stages.begin(), planned.step.stages.end(), [](const StagePlan& plan) {
    return !plan.fetches.empty() || !plan.caches.empty();
  });
  if (!anything) return false;
  planned.step.id = ++last_step_;
  planned.step.model = run_order_.empty() ? candidates_.front().model : run_order_.front();
  const double end_s = in_flight_.empty() ? now_s : in_flight_.back().end_s;
  in_flight_.push_back({planned.step.id, planned.step.model, 0, {}, end_s});
  return true;
}

bool Scheduler::misses_pages(ModelId model) const {
  return std::any_of(pools_.begin(), pools_.end(),
                     [model](const StagePool& pool) { return pool.missing_pages(model) > 0; });
}

bool Scheduler::wants_pages() const {
  return std::any_of(run_order_.begin(), run_order_.end(), [this](ModelId m) { return misses_pages(m); }) ||
         std::any_of(candidates_.begin(), candidates_.end(),
                     [this](const auto& candidate) { return misses_pages(candidate.model); });
}

// Fetches pages of the run order's models in that order, as long as a link would otherwise run dry and frames are to be
// had that nobody wants sooner; then of prefetch candidates.
void Scheduler::prefetch(PlannedStep& planned, double now_s) {
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    int reserve = 0;
    bool complete = true;
    for (auto model = run_order_.begin(); complete && model != run_order_.end(); ++model) {
      reserve += cache_to_come(*model, stage);
      complete = prefetch(stage, planned, *model, evictable_for(*model), reserve, now_s);
    }
    for (auto candidate = candidates_.begin(); complete && candidate != candidates_.end(); ++candidate) {
      complete = prefetch(stage, planned, candidate->model, candidate->evictable, reserve, now_s);
    }
  }
}

// Whether all pages of the model are there or on their way, and the link has room for more.
bool Scheduler::prefetch(std::size_t stage, PlannedStep& planned, ModelId model, std::span<const ModelId> evictable,
                         int reserve, double now_s) {
  const double time_s = fetch_horizon_s(now_s) - std::max(host_links_[stage].free_s, now_s);
  if (time_s <= 0) return false;
  StagePlan& plan = planned.step.stages[stage];
  const std::size_t first = plan.fetches.size();
  const auto bytes = static_cast<std::size_t>(time_s * costs_.link_bytes_per_s(stage)) + 1;
  pools_[stage].prefetch(model, evictable, bytes, reserve, plan);
  issue(stage, first, planned, now_s);
  return pools_[stage].missing_pages(model) == 0;
}

// Fetches the pages that the step's own model lacks, in the step itself: its pass trails them.
void Scheduler::fetch_what_is_missing(PlannedStep& planned, double now_s) {
  const Step& step = planned.step;
  const bool again = work_[step.model].sequences().totals().unfinished > 0 || work_[step.model].to_admit() > 0;
  const std::vector<ModelId> evictable = evictable_for(step.model);
  for (std::size_t stage = 0; stage < pools_.size(); ++stage) {
    StagePlan& plan = planned.step.stages[stage];
    for (const CacheChange& change : plan.caches) {
      issue(stage, change.model, change.slots.size() * layout(change.model, stage).page_bytes, now_s);
    }
    pools_[stage].plan_pass(step.id, step.model, evictable, again, plan);
    issue(stage, /*first=*/0, planned, now_s);
  }
}

// Takes note of the fetches planned from `first` on.
void Scheduler::issue(std::size_t stage, std::size_t first, PlannedStep& planned, double now_s) {
  for (const Fetch& fetch : std::span(planned.step.stages[stage].fetches).subspan(first)) {
    issue(stage, fetch.model, layout(fetch.model, stage).used_bytes[fetch.page], now_s);
    if (!swapping_[fetch.model]) planned.swaps.push_back(fetch.model);
    swapping_[fetch.model] = true;
  }
}

void Scheduler::issue(std::size_t stage, ModelId model, std::size_t bytes, double now_s) {
  if (bytes == 0) return;
  HostLink& link = host_links_[stage];
  link.issued += bytes;
  link.free_s = std::max(link.free_s, now_s) + costs_.transfer_s(stage, bytes);
  link.landed_s[model] = link.free_s;
}

// Predictions follow what ranks report.
void Scheduler::observe(const InFlight& step, std::span<const StageTimes> times, double now_s) {
  for (std::size_t stage = 0; stage < times.size(); ++stage) {
    const StageTimes& seen = times[stage];
    HostLink& link = host_links_[stage];
    if (step.rows > 0) costs_.observe_pass(step.model, stage, step.rows, seen.compute_s);
    costs_.observe_transfer(stage, seen.link_bytes - std::exchange(link.seen_bytes, seen.link_bytes),
                            seen.link_busy_s - std::exchange(link.seen_busy_s, seen.link_busy_s));
    const double before_s = link.free_s;
    link.free_s = now_s + costs_.transfer_s(stage, link.issued - std::min(link.issued, seen.link_bytes));
    for (double& landed_s : link.landed_s) {
      landed_s = landed_s == before_s ? link.free_s : std::min(landed_s, link.free_s);
    }
  }
}

}  // namespace computron
