#include "computron/sched/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace computron {
namespace {

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
  using Policy::Policy;
  RunKey run_key(const ModelView& view, const ActiveModel& active, double) const override {
    const bool runs = view.model == active.model && view.running_urgent > 0;
    return {runs ? 0 : 1, view.oldest_arrival_s, view.oldest_request, view.model};
  }
  bool continuous_batching() const override { return false; }
  // The least recently used loses pages first, whoever waits.
  double silence_s(const ModelView&, double) const override { return 0; }
  bool spares_run_order() const override { return false; }
};

class BalancedPolicy : public Policy {
 public:
  using Policy::Policy;
  RunKey run_key(const ModelView& view, const ActiveModel& active, double now_s) const override {
    enum Tier : std::uint8_t { kStays, kLate, kOther };
    const bool is_late = late(view, now_s);
    const Tier tier = stays(view, active, now_s) ? kStays : is_late ? kLate : kOther;
    return {tier, is_late ? view.waiting_since_s : -weighed(view, active, now_s), 0, view.model};
  }
  bool is_expected(const ModelView& view, double now_s) const override { return comes_regularly(view, now_s); }

 private:
  bool late(const ModelView& view, double now_s) const { return now_s - view.waiting_since_s >= max_wait_s(); }
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
};

class ThroughputPolicy : public Policy {
 public:
  using Policy::Policy;
  bool plans_ahead() const override { return true; }
  // Who is waited for is served in order. Of batch work Johnson's rule: those whose transfer is shorter than their
  // compute go first, the shortest transfer foremost; then the others, the shortest compute last.
  RunKey run_key(const ModelView& view, const ActiveModel& active, double) const override {
    if (view.urgency < 0) return {0, view.oldest_arrival_s, view.oldest_request, view.model};
    const bool shorter_transfer = view.missing_s < view.compute_s;
    const std::int64_t by_priority = 2 * -static_cast<std::int64_t>(view.priority) + (shorter_transfer ? 0 : 1);
    const bool runs = view.model == active.model;
    return {runs ? std::numeric_limits<std::int64_t>::min() : by_priority,
            shorter_transfer ? view.missing_s : -view.compute_s, 0, view.model};
  }
};

}  // namespace

// Belady's rule on predictions.
double Policy::silence_s(const ModelView& view, double now_s) const { return expected_silence_s(view, now_s); }

std::unique_ptr<Policy> make_fifo_policy(const PolicyOptions& options) { return std::make_unique<FifoPolicy>(options); }

std::unique_ptr<Policy> make_balanced_policy(const PolicyOptions& options) {
  return std::make_unique<BalancedPolicy>(options);
}

std::unique_ptr<Policy> make_throughput_policy(const PolicyOptions& options) {
  return std::make_unique<ThroughputPolicy>(options);
}

std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options) {
  if (name == "fifo") return make_fifo_policy(options);
  if (name == "balanced") return make_balanced_policy(options);
  if (name == "throughput") return make_throughput_policy(options);
  throw Error(ExitCode::kUsage, fmt::format("unknown policy '{}' (known: fifo, balanced, throughput)", name));
}

}  // namespace computron
