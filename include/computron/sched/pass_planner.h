// Which pass a model's turn comes to: who is admitted to its running sequences, which of them take part, and whether
// another model fills in while the first one's pages are being copied. Changes sequences (admission, preemption) and
// frees no frame: where the cache of the pass comes from is the cache allocator's part.
#pragma once

#include <optional>

#include "computron/sched/cache_allocator.h"
#include "computron/sched/pass_plan.h"
#include "computron/sched/prefetcher.h"
#include "computron/sched/scheduler_state.h"

namespace computron {

class PassPlanner {
 public:
  // Borrows all three.
  PassPlanner(SchedulerState& state, const CacheAllocator& caches, const Prefetcher& prefetcher)
      : state_(state), caches_(caches), prefetcher_(prefetcher) {}

  // While pages of the run order's first model are being copied: another model whose pages are all resident and whose
  // next pass ends before the first one's has to begin in order to end just behind the copy of its last page.
  std::optional<ModelId> model_to_fill_in(double now_s) const;
  // The next pass of a model of the run order, for which its cache must have the pass's blocks; none if it has to wait.
  std::optional<PassPlan> plan(ModelId model);

 private:
  void admit(ModelId model);
  bool admits(ModelId model) const;
  PassPlan choose(ModelId model);
  PassLimits limits(ModelId model, bool exceeds_pool) const;
  int prompt_tokens(ModelId model) const;
  bool waits_for_micro_batch(ModelId model, const PassPlan& pass) const;

  SchedulerState& state_;
  const CacheAllocator& caches_;
  const Prefetcher& prefetcher_;
};

}  // namespace computron
