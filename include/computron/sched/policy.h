// Which models run in which order, and whose pages are evicted (agenda.h puts the models in these orders). Policies are
// pure functions of what they are shown: they keep nothing between calls, borrow nothing, and throw nothing. All times
// are seconds of the scheduler's clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include "computron/base/types.h"

namespace computron {

// What a policy knows of a model at a decision.
struct ModelView {
  ModelId model = 0;
  std::size_t waiting = 0;           // requests that no step has begun, and preempted sequences
  std::size_t running = 0;           // sequences that are not certain to end with what is in flight
  std::size_t running_urgent = 0;    // those of the model's urgency, below
  double oldest_arrival_s = 0;       // of the waiting and running ones that are as urgent
  std::uint64_t oldest_request = 0;  // tells equal arrivals apart
  double waiting_since_s = 0;        // that oldest arrival, or the model's last pass if that is later
  double arrivals_s = 0;             // summed over the waiting and running ones
  double last_arrival_s = 0;         // of all requests so far
  double arrival_gap_s = 0;          // between two arrivals, a moving mean; 0: there were no two
  double arrival_gap2_s2 = 0;        // moving mean of its square
  StepId last_used = 0;              // last step that ran it; 0: never
  double missing_s = 0;              // transfer of what its next pass has to wait for, slowest stage
  double swap_s = 0;                 // transfer of all of it, slowest stage; of the active model only
  double compute_s = 0;              // predicted, of everything waiting and running
  bool catching_up = false;          // computing again what it had before its cache was evicted
  bool pinned = false;               // its pages are never evicted
  int priority = 0;
  std::int32_t urgency = 0;  // the least of its requests' (Request::urgency): of unequal models no policy is asked

  std::size_t requests() const { return waiting + running; }
  bool has_work() const { return requests() > 0; }
};

// The model whose passes are being planned, and since when.
struct ActiveModel {
  std::optional<ModelId> model;
  double since_s = 0;
};

// Where a model stands in the run order: the least key first.
struct RunKey {
  std::int64_t tier = 0;  // a model of a lower tier goes first, whatever the rest
  double value = 0;       // within a tier
  std::uint64_t tie = 0;  // of equal values
  ModelId model = 0;      // of equal ties
  bool operator<(const RunKey& other) const {
    return std::tie(tier, value, tie, model) < std::tie(other.tier, other.value, other.tie, other.model);
  }
};

struct PolicyOptions {
  // A model's oldest request goes first when more urgent ones have passed it by for so long (aging.h). Balanced: so
  // does a model whose requests have seen no pass of it for so long.
  double max_wait_s = 30;
};

class Policy {
 public:
  explicit Policy(const PolicyOptions& options = {}) : options_(options) {}
  virtual ~Policy() = default;
  double max_wait_s() const { return options_.max_wait_s; }
  // Of a model that has work: the order of keys is the order in which such models should run, the first now; the next
  // ones are prefetched.
  virtual RunKey run_key(const ModelView& view, const ActiveModel& active, double now_s) const = 0;
  // Whether it wants to know all requests of the input before it decides anything. Some of them may be held back until
  // others are done, and are not waited for (Scheduler::note_input_end).
  virtual bool plans_ahead() const { return false; }
  // Whether requests that find their model active join its batch, or wait until that has ended. Without it, no other
  // model fills in either while the active one's pages are copied.
  virtual bool continuous_batching() const { return true; }

  // Who has pages evicted first: the longest silent, and of those the least recently used. Of models without work
  // alone, if the run order is spared: then those of the run order lose pages behind them, the last to run first. The
  // first of the run order and pinned ones lose none.
  virtual double silence_s(const ModelView& view, double now_s) const;
  virtual bool spares_run_order() const { return true; }
  // Whether a model without work will probably have some when it has been silent for silence_s() more. Such a model may
  // be prefetched while a link is idle, in place of pages of models that will be silent for twice as long. Once it is
  // expected no longer, it is not until a request for it comes, and none is before there have been two.
  virtual bool is_expected(const ModelView& /*view*/, double /*now_s*/) const { return false; }

 private:
  PolicyOptions options_;
};

// The rule of the Computron paper (perf/README.md), the baseline: the model with the oldest waiting request runs a
// batch; the least recently used model loses pages.
std::unique_ptr<Policy> make_fifo_policy(const PolicyOptions& options = {});
// Backlog-aware: most requests a second of transfer and compute first, the longer they have waited the more; a model
// stays for at least one swap time and until it has computed more than a lost cache held (else two models might evict
// each other for ever and get nowhere); a model that no pass has served for max_wait_s goes first.
std::unique_ptr<Policy> make_balanced_policy(const PolicyOptions& options);
// All requests known: every model's work at once, in the order in which transfers hide best behind compute (Johnson's
// rule for two machines, link and processor); no page moves twice that need not.
std::unique_ptr<Policy> make_throughput_policy(const PolicyOptions& options = {});
// "fifo", "balanced" or "throughput". Error{kUsage} naming `name` and the known ones.
std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options = {});

}  // namespace computron
