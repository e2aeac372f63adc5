// Turns requests into steps. Pure: it reads no clock, calls no MPI and starts no thread, so a simulator or a test
// drives the same object that serves.
//
//   submit(request) → queue of its model → turn: a batch of one model → steps → completed(step, rows) → completions
//
// A turn loads what its model misses, gives it cache for all its sequences to their full length, and runs them to
// completion. Up to `steps_in_flight` steps of a turn may be on their way, each with sequences of its own, so that the
// stages of a pipeline work side by side; turns follow each other with nothing in flight.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <variant>
#include <vector>

#include "computron/runtime/kv_geometry.h"
#include "computron/sched/policy.h"
#include "computron/sched/sequence.h"
#include "computron/sched/stage_pool.h"

namespace computron {

// A model as the scheduler sees it, on all stages.
struct ModelShape {
  std::vector<const Image*> images;  // [stage]
  std::vector<KvGeometry> caches;    // [stage]
  std::vector<TokenId> eos_tokens;
};

struct SchedulerOptions {
  int frames = 0;  // of every stage's pool
  int max_batch_tokens = 2048;
  int max_seqs = 64;
  int steps_in_flight = 1;
};

// A step to send, with the digests that the ranks of each stage must report after it.
struct PlannedStep {
  Step step;
  std::vector<StateDigest> expected;  // [stage]
  bool swap = false;                  // the first step of a turn whose model missed pages
};
struct WaitUntil {
  double time_s;  // of the clock that next() is given; infinity: for submit, close_input or completed
};
struct AllDone {};
using Decision = std::variant<PlannedStep, WaitUntil, AllDone>;

class Scheduler {
 public:
  // ConfigError when a model and one block of its cache exceed the pool of some stage, naming model and bytes.
  Scheduler(std::vector<ModelShape> models, std::vector<std::string> names, std::unique_ptr<Policy> policy,
            const SchedulerOptions& options);

  // A request becomes visible at its arrival_s. One whose cache can never fit completes with an error at once.
  void submit(Request request);
  // No request follows.
  void close_input() { input_closed_ = true; }

  // What to do now. A PlannedStep must be sent and, when all ranks have reported it, handed to completed().
  Decision next(double now_s);
  // Every rank has executed the step; `rows` are the last stage's. Steps complete in the order planned.
  void completed(StepId step, std::span<const SampledRow> rows, double now_s);

  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  std::size_t waiting() const;  // requests not yet in a turn
  std::optional<ModelId> running_model() const { return running_; }
  const Image& image(ModelId model, std::size_t stage) const { return *models_[model].images[stage]; }

 private:
  struct Queue {
    std::deque<Request> waiting;  // the earliest first
    StepId last_used = 0;
  };

  void admit_arrivals(double now_s);
  bool any_waiting() const;
  std::vector<ModelView> views() const;
  void refuse(const Request& request, std::string message);
  int blocks_of(ModelId model, const Request& request) const;
  bool fits(ModelId model, int blocks) const;

  void begin_turn(PlannedStep& planned);
  std::vector<Request> take_batch(ModelId model, int& blocks);
  bool fill_batch(Step& step);
  void close_finished(Step& step);
  PlannedStep seal(PlannedStep planned);

  std::vector<ModelShape> models_;
  std::vector<std::string> names_;
  std::unique_ptr<Policy> policy_;
  SchedulerOptions options_;
  std::vector<StagePool> pools_;  // [stage]

  static bool earlier(const Request& a, const Request& b) {
    return std::tie(a.arrival_s, a.id) < std::tie(b.arrival_s, b.id);
  }
  struct Later {
    bool operator()(const Request& a, const Request& b) const { return earlier(b, a); }
  };
  std::priority_queue<Request, std::vector<Request>, Later> arriving_;
  std::vector<Queue> queues_;  // [model]
  bool input_closed_ = false;

  std::optional<ModelId> running_;                  // whose turn it is
  std::list<Sequence> batch_;                       // of the turn; the longest without a chunk first
  std::deque<std::uint32_t> free_blocks_;           // of the running model's cache
  std::vector<SequenceId> to_close_;
  std::deque<std::pair<StepId, std::vector<Sequence*>>> in_flight_;
  StepId last_step_ = 0;
  SequenceId last_sequence_ = 0;
  std::vector<Completion> completions_;
};

}  // namespace computron
