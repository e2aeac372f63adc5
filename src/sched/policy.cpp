#include "computron/sched/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace computron {
namespace {

std::vector<ModelView> with_work(std::span<const ModelView> models) {
  std::vector<ModelView> result;
  std::copy_if(models.begin(), models.end(), std::back_inserter(result),
               [](const ModelView& view) { return view.has_work(); });
  return result;
}

std::vector<ModelId> ids(const std::vector<ModelView>& views) {
  std::vector<ModelId> result;
  for (const ModelView& view : views) result.push_back(view.model);
  return result;
}

bool older(const ModelView& a, const ModelView& b) {
  return std::tie(a.oldest_arrival_s, a.oldest_request) < std::tie(b.oldest_arrival_s, b.oldest_request);
}

// Everybody who may lose pages, the least recently used first.
std::vector<ModelView> least_recent_first(std::span<const ModelView> models, std::span<const ModelId> run_order) {
  std::vector<ModelView> result;
  for (const ModelView& view : models) {
    if (!view.pinned && (run_order.empty() || view.model != run_order.front())) result.push_back(view);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const ModelView& a, const ModelView& b) { return a.last_used < b.last_used; });
  return result;
}

// Requests come at about equal intervals, and the next one is not long overdue.
bool comes_regularly(const ModelView& view, double now_s) {
  constexpr double kRegular = 0.3;  // variance of the time between two ÷ its mean squared
  const double gap_s = view.arrival_gap_s;
  return gap_s > 0 && view.arrival_gap2_s2 / (gap_s * gap_s) - 1 < kRegular && now_s - view.last_arrival_s < 3 * gap_s;
}

// Seconds until the next request for a model, as far as the ones so far tell. Where they come regularly: the rest of
// the usual time between two. Where they come at random or in bursts: the longer it has been silent, the longer it will
// be, and the rarer its requests.
double expected_silence_s(const ModelView& view, double now_s) {
  const double gap_s = view.arrival_gap_s, silent_s = now_s - view.last_arrival_s;
  if (gap_s <= 0) return std::numeric_limits<double>::max();
  return comes_regularly(view, now_s) ? std::max(gap_s - silent_s, 0.2 * gap_s) : 0.5 * gap_s + silent_s;
}

class FifoPolicy : public Policy {
 public:
  std::vector<ModelId> run_order(std::span<const ModelView> models, const ActiveModel& active, double) const override {
    std::vector<ModelView> views = with_work(models);
    std::stable_sort(views.begin(), views.end(), [&active](const ModelView& a, const ModelView& b) {
      const bool a_runs = a.model == active.model && a.running > 0, b_runs = b.model == active.model && b.running > 0;
      return a_runs != b_runs ? a_runs : older(a, b);
    });
    return ids(views);
  }
  bool continuous_batching() const override { return false; }
  std::vector<ModelId> eviction_order(std::span<const ModelView> models, std::span<const ModelId> run_order,
                                      double) const override {
    return ids(least_recent_first(models, run_order));
  }
};

class BalancedPolicy : public Policy {
 public:
  explicit BalancedPolicy(const PolicyOptions& options) : options_(options) {}

  std::vector<ModelId> run_order(std::span<const ModelView> models, const ActiveModel& active,
                                 double now_s) const override {
    std::vector<ModelView> views = with_work(models);
    std::stable_sort(views.begin(), views.end(), [&](const ModelView& a, const ModelView& b) {
      const bool a_stays = stays(a, active, now_s), b_stays = stays(b, active, now_s);
      if (a_stays != b_stays) return a_stays;
      const bool a_late = late(a, now_s), b_late = late(b, now_s);
      if (a_late != b_late) return a_late;
      if (a_late) return a.waiting_since_s < b.waiting_since_s;
      return weighed(a, active, now_s) > weighed(b, active, now_s);
    });
    return ids(views);
  }

  std::vector<PrefetchCandidate> prefetch_candidates(std::span<const ModelView> models, double now_s) const override {
    std::vector<ModelView> idle;
    std::copy_if(models.begin(), models.end(), std::back_inserter(idle),
                 [](const ModelView& view) { return !view.has_work(); });
    std::stable_sort(idle.begin(), idle.end(), [now_s](const ModelView& a, const ModelView& b) {
      return expected_silence_s(a, now_s) < expected_silence_s(b, now_s);
    });
    std::vector<PrefetchCandidate> prefetch_candidates;
    for (const ModelView& view : idle) {
      if (comes_regularly(view, now_s)) prefetch_candidates.push_back({view.model, wanted_later(view, idle, now_s)});
    }
    return prefetch_candidates;
  }

 private:
  // Those that will be silent for twice as long, the longest first.
  static std::vector<ModelId> wanted_later(const ModelView& than, const std::vector<ModelView>& by_silence,
                                           double now_s) {
    std::vector<ModelId> later;
    for (auto view = by_silence.rbegin(); view != by_silence.rend(); ++view) {
      const bool long_silent = expected_silence_s(*view, now_s) > 2 * expected_silence_s(than, now_s);
      if (long_silent && !view->pinned) later.push_back(view->model);
    }
    return later;
  }

  bool late(const ModelView& view, double now_s) const { return now_s - view.waiting_since_s >= options_.max_wait_s; }
  static bool stays(const ModelView& view, const ActiveModel& active, double now_s) {
    return view.model == active.model && (view.catching_up || now_s < active.since_s + view.swap_s);
  }
  // Switching between models all the time would make all of them late: what has begun goes on unless
  // something else is clearly better.
  static double weighed(const ModelView& view, const ActiveModel& active, double now_s) {
    constexpr double kActive = 4;
    return score(view, now_s) * (view.model == active.model ? kActive : 1);
  }
  // Requests served a second if it went next (Smith's rule), times their mean age over its cost: what has waited long
  // for little goes before what has waited little for much.
  static double score(const ModelView& view, double now_s) {
    constexpr double kAge = 0.3;
    const double cost_s = view.missing_s + view.compute_s + 1e-9;
    const double age_s = now_s - view.arrivals_s / static_cast<double>(view.requests());
    return std::exp2(view.priority) * static_cast<double>(view.requests()) / cost_s * (1 + kAge * age_s / cost_s);
  }

  PolicyOptions options_;
};

class ThroughputPolicy : public Policy {
 public:
  bool plans_ahead() const override { return true; }
  std::vector<ModelId> run_order(std::span<const ModelView> models, const ActiveModel& active, double) const override {
    std::vector<ModelView> views = with_work(models);
    std::stable_sort(views.begin(), views.end(), [&active](const ModelView& a, const ModelView& b) {
      if (a.model == active.model || b.model == active.model) return a.model == active.model && b.model != active.model;
      if (a.priority != b.priority) return a.priority > b.priority;
      const bool a_first = a.missing_s < a.compute_s, b_first = b.missing_s < b.compute_s;
      if (a_first != b_first) return a_first;
      return a_first ? a.missing_s < b.missing_s : a.compute_s > b.compute_s;
    });
    return ids(views);
  }
};

}  // namespace

// Models without work go first, the one that will be wanted last foremost (Belady's rule on predictions; of those that
// nobody has asked for twice, the least recently used); then those that run last.
std::vector<ModelId> Policy::eviction_order(std::span<const ModelView> models, std::span<const ModelId> run_order,
                                            double now_s) const {
  std::vector<ModelView> views = least_recent_first(models, run_order);
  const auto position = [run_order](const ModelView& view) {
    return std::find(run_order.begin(), run_order.end(), view.model) - run_order.begin();
  };
  std::stable_sort(views.begin(), views.end(), [&](const ModelView& a, const ModelView& b) {
    if (position(a) != position(b)) return position(a) > position(b);
    return expected_silence_s(a, now_s) > expected_silence_s(b, now_s);
  });
  return ids(views);
}

std::unique_ptr<Policy> make_fifo_policy() { return std::make_unique<FifoPolicy>(); }

std::unique_ptr<Policy> make_balanced_policy(const PolicyOptions& options) {
  return std::make_unique<BalancedPolicy>(options);
}

std::unique_ptr<Policy> make_throughput_policy() { return std::make_unique<ThroughputPolicy>(); }

std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options) {
  if (name == "fifo") return make_fifo_policy();
  if (name == "balanced") return make_balanced_policy(options);
  if (name == "throughput") return make_throughput_policy();
  throw Error(ExitCode::kUsage, fmt::format("unknown policy '{}' (known: fifo, balanced, throughput)", name));
}

}  // namespace computron
