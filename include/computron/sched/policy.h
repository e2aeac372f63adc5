// Which models run in which order, and whose pages are evicted. Policies are pure functions of what they are shown:
// they keep nothing between calls, borrow nothing, and throw nothing. All times are seconds of the scheduler's clock.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "computron/base/types.h"

namespace computron {

// What a policy knows of a model at a decision.
struct ModelView {
  ModelId model = 0;
  std::size_t waiting = 0;           // requests that no step has begun, and preempted sequences
  std::size_t running = 0;           // sequences that are not certain to end with what is in flight
  double oldest_arrival_s = 0;       // of the waiting and running ones
  std::uint64_t oldest_request = 0;  // tells equal arrivals apart
  double waiting_since_s = 0;        // the oldest arrival, or the model's last pass if that is later
  double arrivals_s = 0;             // summed over the waiting and running ones
  double last_arrival_s = 0;         // of all requests so far
  double arrival_gap_s = 0;          // between two arrivals, a moving mean; 0: there were no two
  double arrival_gap2_s2 = 0;        // moving mean of its square
  StepId last_used = 0;              // last step that ran it; 0: never
  double missing_s = 0;              // transfer of what its next pass has to wait for, slowest stage
  double swap_s = 0;                 // transfer of all of it, slowest stage
  double compute_s = 0;              // predicted, of everything waiting and running
  bool catching_up = false;          // computing again what it had before its cache was evicted
  bool pinned = false;               // its pages are never evicted
  int priority = 0;

  std::size_t requests() const { return waiting + running; }
  bool has_work() const { return requests() > 0; }
};

// The model whose passes are being planned, and since when.
struct ActiveModel {
  std::optional<ModelId> model;
  double since_s = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // The models that have work, in the order in which they should run: the first now, the next ones are prefetched.
  // `models` has an entry for every model.
  virtual std::vector<ModelId> run_order(std::span<const ModelView> models, const ActiveModel& active,
                                         double now_s) const = 0;
  // A model without work that will probably have some before those do whose pages it may evict: it may be prefetched
  // while a link is idle.
  struct PrefetchCandidate {
    ModelId model = 0;
    std::vector<ModelId> evictable;  // the first to lose first
  };
  // The one that is wanted soonest first.
  virtual std::vector<PrefetchCandidate> prefetch_candidates(std::span<const ModelView>, double /*now_s*/) const {
    return {};
  }
  // Whether it wants to know all requests of the input before it decides anything. Some of them may be held back until
  // others are done, and are not waited for (Scheduler::note_input_end).
  virtual bool plans_ahead() const { return false; }
  // Whether requests that find their model active join its batch, or wait until that has ended. Without it, no other
  // model fills in either while the active one's pages are copied.
  virtual bool continuous_batching() const { return true; }
  // The models whose pages may be evicted, the first to lose first; the first of the run order and pinned ones are not
  // among them.
  virtual std::vector<ModelId> eviction_order(std::span<const ModelView> models, std::span<const ModelId> run_order,
                                              double now_s) const;
};

struct PolicyOptions {
  double max_wait_s = 30;  // balanced: a model whose requests have seen no pass of it for so long goes first
};

// The rule of the Computron paper (perf/README.md), the baseline: the model with the oldest waiting request runs a
// batch; the least recently used model loses pages.
std::unique_ptr<Policy> make_fifo_policy();
// Backlog-aware: most requests a second of transfer and compute first, the longer they have waited the more; a model
// stays for at least one swap time and until it has computed more than a lost cache held (else two models might evict
// each other for ever and get nowhere); a model that no pass has served for max_wait_s goes first.
std::unique_ptr<Policy> make_balanced_policy(const PolicyOptions& options);
// All requests known: every model's work at once, in the order in which transfers hide best behind compute (Johnson's
// rule for two machines, link and processor); no page moves twice that need not.
std::unique_ptr<Policy> make_throughput_policy();
// "fifo", "balanced" or "throughput". Error{kUsage} naming `name` and the known ones.
std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options = {});

}  // namespace computron
