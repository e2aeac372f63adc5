// What the parts of the scheduler share (README.md, "Parts"), and who changes it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "computron/runtime/kv_geometry.h"
#include "computron/sched/agenda.h"
#include "computron/sched/cost_model.h"
#include "computron/sched/deadlines.h"
#include "computron/sched/stage_pool.h"
#include "computron/sched/work_table.h"

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
  int adapter_slots = 0;        // of every stage's pool, beside its frames: for pages that lie in slots
  int max_batch_tokens = 2048;  // of a pass
  int max_seqs = 64;            // running sequences of a model
  int steps_in_flight = 1;      // passes; a model's running sequences are split into a micro-batch a stage
  bool prefix_caching = false;  // sequences that begin with the same tokens use the same cache blocks for those
  // Most that a front end leaves waiting (is_full()); then a policy that plans ahead decides without knowing the rest.
  std::size_t max_waiting = 1 << 16;                       // requests
  std::size_t max_waiting_bytes = std::size_t{512} << 20;  // of their prompts and images
  OnLate on_late = OnLate::kServe;                         // kReject is the dispatcher's affair
  double fetch_ahead_s = 0.02;  // fetches for later passes are issued this long before the link would run dry
  CostOptions costs = {};
};

// A step that has been planned and not reported.
struct StepInFlight {
  struct Rider {
    ModelId model;
    std::vector<ModelWork::Handle> members;
  };
  StepId id;
  ModelId model;
  int rows;                                // of the pass; 0: fetches only
  std::vector<ModelWork::Handle> members;  // sequences of the pass, of its model
  double end_s;                            // predicted
  std::vector<Rider> riders = {};          // sequences of the pass, of other models
};

struct SchedulerState {
  // At least one model.
  SchedulerState(std::vector<ModelShape> models, std::unique_ptr<Policy> policy, const SchedulerOptions& options);

  std::size_t stages() const { return pools.size(); }
  const ShardLayout& layout(ModelId model, std::size_t stage) const { return *models[model].layouts[stage]; }
  bool misses_pages(ModelId model) const;
  // When what has been planned will have been executed, as predicted, but not before `now_s`.
  double computed_s(double now_s) const { return in_flight.empty() ? now_s : std::max(now_s, in_flight.back().end_s); }
  // Whether a pass may have rows of both: they are one, or of one family.
  bool may_share_pass(ModelId a, ModelId b) const {
    return a == b || (families[a] != kAlone && families[a] == families[b]);
  }
  // The ranks will know it with the next step, before whose changes of caches the sequence is gone.
  void close(SequenceId sequence);

  // Never change.
  std::vector<ModelShape> models;
  SchedulerOptions options;
  static constexpr int kAlone = -1;
  std::vector<int> families;  // [model] the same number: ShardLayout::family is, on every stage; kAlone: no other's is

  // Changed by the core, the agenda by it alone.
  Agenda agenda;
  std::deque<StepInFlight> in_flight;  // in order
  SequenceId last_sequence = 0;
  CostModel costs;           // follows the times that ranks report
  bool interactive = false;  // a request has come that is more urgent than batch work

  // Changed by the core and the cache allocator.
  WorkTable work;                  // requests, sequences, cache blocks
  std::vector<SequenceId> closed;  // ended, preempted or restarted since the last step

  // Changed by the cache allocator and the prefetcher: frames, as all planned steps will leave them, and the plan of
  // the step that is being put together.
  std::vector<StagePool> pools;  // [stage]
};

}  // namespace computron
