#include "computron/sched/prefetcher.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace computron {

Prefetcher::Prefetcher(SchedulerState& state, CacheAllocator& caches)
    : state_(state), caches_(caches), swapping_(state.models.size(), false) {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const std::size_t models = state_.models.size();
    links_.push_back({.in_flight = ModelList(models), .landed_s = std::vector<double>(models, 0)});
  }
}

// --- Predictions ------------------------------------------------------------------------------------------------

double Prefetcher::wait_s(ModelId model, double now_s) const {
  double longest_s = 0;
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const HostLink& link = links_[stage];
    const std::size_t missing = state_.pools[stage].counts().missing_bytes(model);
    const double issued_s = missing > 0 ? link.free_s : link.landed_s[model];
    const double transfer_s = missing > 0 ? state_.costs.transfer_s(stage, missing) : 0;
    longest_s = std::max(longest_s, std::max(issued_s - now_s, 0.0) + transfer_s);
  }
  return longest_s;
}

double Prefetcher::wait_behind_s(ModelId model, const std::set<ModelId>& others, double now_s) const {
  if (!state_.misses_pages(model)) return wait_s(model, now_s);
  std::vector<ModelId> together{model};
  for (const ModelId other : others) {
    if (other != model) together.push_back(other);
  }
  double longest_s = 0;
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const std::size_t missing = state_.pools[stage].counts().missing_bytes(together);
    const double busy_s = std::max(links_[stage].free_s - now_s, 0.0);
    longest_s = std::max(longest_s, busy_s + state_.costs.transfer_s(stage, missing));
  }
  return longest_s;
}

bool Prefetcher::is_ready(ModelId model, double now_s) const {
  for (const StagePool& pool : state_.pools) {
    if (pool.missing_pages(model) > 0 || pool.offloaded(model)) return false;
  }
  return wait_s(model, now_s) <= 0;
}

bool Prefetcher::can_go_on(ModelId model) const {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    if (pool.missing_pages(model) == 0) continue;
    const auto evictable = state_.agenda.evictable_for(model, stage);
    const bool in_frames = pool.missing_pages(model, FrameKind::kWhole) > 0;
    if (in_frames && pool.available(evictable) <= caches_.frames_to_come(model, stage)) return false;
    if (!in_frames && pool.available(evictable, FrameKind::kSlot) == 0) return false;
  }
  return true;
}

double Prefetcher::wakes_s(double now_s) {
  double wakes_s = std::numeric_limits<double>::infinity();
  if (!wants_pages()) return wakes_s;
  // Silence goes by, and the candidates change.
  if (state_.agenda.run_order().empty()) wakes_s = now_s + state_.options.fetch_ahead_s;
  for (const HostLink& link : links_) {
    const double dry_s = link.free_s - state_.options.fetch_ahead_s / 2;
    if (dry_s > now_s) wakes_s = std::min(wakes_s, dry_s);
  }
  return wakes_s;
}

bool Prefetcher::wants_pages() {
  const auto misses = [this](ModelId model) { return state_.misses_pages(model); };
  return std::ranges::any_of(state_.agenda.run_order().models(), misses) || state_.agenda.any_candidate(misses);
}

// --- Planning ---------------------------------------------------------------------------------------------------

void Prefetcher::fetch_missing(StepId step, ModelId model, bool again, double now_s) {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    StagePool& pool = state_.pools[stage];
    for (const CacheChange& change : pool.plan().caches) {
      issue(stage, change.model, change.slots.size() * state_.layout(change.model, stage).page_bytes, now_s);
    }
    auto evictable = state_.agenda.evictable_for(model, stage);
    pool.plan_pass(step, model, evictable, again);
    issue_fetches(stage, /*first=*/0, now_s);
  }
}

void Prefetcher::prefetch(double now_s) {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) prefetch_stage(stage, now_s);
}

void Prefetcher::prefetch_stage(std::size_t stage, double now_s) {
  if (horizon_s(now_s) - std::max(links_[stage].free_s, now_s) <= 0) return;
  int reserve = 0;
  for (const ModelId model : state_.agenda.run_order().models()) {
    reserve += caches_.frames_to_come(model, stage);
    auto evictable = state_.agenda.evictable_for(model, stage);
    if (!prefetch_model(stage, model, evictable, reserve, now_s)) return;
  }
  state_.agenda.visit_candidates(state_.pools[stage], [&](ModelId model, Evictable& evictable) {
    return prefetch_model(stage, model, evictable, reserve, now_s);
  });
}

// Whether all pages of the model are there or on their way, and the link has room for more.
bool Prefetcher::prefetch_model(std::size_t stage, ModelId model, Evictable& evictable, int reserve, double now_s) {
  const double time_s = horizon_s(now_s) - std::max(links_[stage].free_s, now_s);
  if (time_s <= 0) return false;
  StagePool& pool = state_.pools[stage];
  if (pool.missing_pages(model) == 0) return true;
  const std::size_t first = pool.plan().fetches.size();
  const auto bytes = static_cast<std::size_t>(time_s * state_.costs.link_bytes_per_s(stage)) + 1;
  pool.prefetch(model, evictable, bytes, reserve);
  issue_fetches(stage, first, now_s);
  return pool.missing_pages(model) == 0;
}

std::optional<ModelId> Prefetcher::plan_fetch_step(double now_s) {
  const double due_s = horizon_s(now_s) - state_.options.fetch_ahead_s / 2;
  const bool due = std::ranges::any_of(links_, [due_s](const HostLink& link) { return link.free_s <= due_s; });
  if (!due || !wants_pages()) return std::nullopt;
  caches_.trim(std::nullopt);
  prefetch(now_s);
  const bool anything = std::ranges::any_of(
      state_.pools, [](const StagePool& pool) { return !pool.plan().fetches.empty() || !pool.plan().caches.empty(); });
  if (!anything) return std::nullopt;
  const RunOrder& order = state_.agenda.run_order();
  return order.empty() ? state_.agenda.first_candidate() : order.front();
}

// Takes note of the fetches planned from `first` on.
void Prefetcher::issue_fetches(std::size_t stage, std::size_t first, double now_s) {
  for (const Fetch& fetch : std::span(state_.pools[stage].plan().fetches).subspan(first)) {
    issue(stage, fetch.model, state_.layout(fetch.model, stage).page_link_bytes(fetch.page), now_s);
    state_.pools[stage].state().shared().for_each({fetch.model, fetch.page},
                                                  [&](const PageRef& page) { lands_last(stage, page.model); });
    if (!swapping_[fetch.model]) swaps_.push_back(fetch.model);
    swapping_[fetch.model] = true;
  }
}

void Prefetcher::issue(std::size_t stage, ModelId model, std::size_t bytes, double now_s) {
  if (bytes == 0) return;
  HostLink& link = links_[stage];
  link.issued += bytes;
  link.free_s = std::max(link.free_s, now_s) + state_.costs.transfer_s(stage, bytes);
  lands_last(stage, model);
}

// What has been issued last is the model's, too.
void Prefetcher::lands_last(std::size_t stage, ModelId model) {
  links_[stage].landed_s[model] = links_[stage].free_s;
  links_[stage].in_flight.insert(model);
}

// --- Reports ----------------------------------------------------------------------------------------------------

void Prefetcher::observe(const StepInFlight& step, std::span<const StageTimes> times, double now_s) {
  for (std::size_t stage = 0; stage < times.size(); ++stage) {
    const StageTimes& seen = times[stage];
    HostLink& link = links_[stage];
    if (step.rows > 0) state_.costs.observe_pass(step.model, stage, step.rows, seen.compute_s);
    state_.costs.observe_transfer(stage, seen.link_bytes - std::exchange(link.seen_bytes, seen.link_bytes),
                                  seen.link_busy_s - std::exchange(link.seen_busy_s, seen.link_busy_s));
    const double before_s = link.free_s;
    link.free_s = now_s + state_.costs.transfer_s(stage, link.issued - std::min(link.issued, seen.link_bytes));
    land(link, before_s, now_s);
  }
}

// What was to land last lands when the link is through now; nothing lands later than that. What has landed stays so:
// the link is never through before now again.
void Prefetcher::land(HostLink& link, double before_s, double now_s) {
  for (std::size_t i = link.in_flight.size(); i > 0; --i) {  // from the end: one that goes is replaced by the last
    const ModelId model = link.in_flight.models()[i - 1];
    double& landed_s = link.landed_s[model];
    landed_s = landed_s == before_s ? link.free_s : std::min(landed_s, link.free_s);
    if (landed_s < now_s) link.in_flight.erase(model);
  }
}

}  // namespace computron
