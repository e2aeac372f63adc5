// Which pass a model's turn comes to: who is admitted to its running sequences, which of them take part, whether
// another model fills in while the first one's pages are being copied, and which models of its family ride along.
// Changes sequences (admission, preemption) and frees no frame: where the cache of the pass comes from is the cache
// allocator's part.
//
// Riders. Models that differ in their adapters alone (SchedulerState::families) may have sequences in one pass: the
// base's weights are read once for all of them. A pass of the run order's first model takes along whom it finds behind
// it in that order, in that order, in what it leaves of its tokens: models all of whose pages will be there as soon as
// its own, and whose caches find room beside what the first one's will want. Where the first one has no sequence but in
// flight, another of its family leads. A model that fills in takes along those with whom its pass still ends in time
// and who change nobody's residency: their caches find room in frames that are free. A sequence is admitted for a pass
// that has room for it. Models of a policy without continuous batching never ride.
#pragma once

#include <optional>
#include <span>
#include <vector>

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
  struct Filler {
    ModelId model;
    int most_rows;  // of its pass, riders' among them
  };
  std::optional<Filler> model_to_fill_in(double now_s) const;
  // The next pass of a model of the run order, for which its cache must have the pass's blocks; none if it has to wait.
  std::optional<PassPlan> plan(ModelId model);

  // Models of the run order's first one's family that may lead a pass where that one has no sequence for it, in the
  // order in which they run.
  std::vector<ModelId> other_leads(double now_s) const;
  // Those that may ride along in a pass of `lead`, all of whose fetches have been planned. `fills_in`: it does so for
  // another model, which is first in the run order.
  std::vector<ModelId> riders(ModelId lead, bool fills_in, double now_s) const;
  // What a pass leaves to riders.
  struct Room {
    std::int32_t last = 0;  // the urgency of the lead's least urgent sequences
    int sequences = 0, tokens = 0, prompt_tokens = 0, logit_rows = 0;
    bool fills_in = false;
    bool is_full() const { return sequences <= 0 || tokens <= 0 || logit_rows <= 0; }
    void take(const PassPlan& pass);
  };
  // `pass`: the lead's. `filler`: where it fills in.
  Room room_beside(ModelId lead, const PassPlan& pass, std::span<const ModelId> riders,
                   const std::optional<Filler>& filler) const;
  // The rider's part of the pass, for which its cache must have the part's blocks; none if it has none. Admits
  // sequences as far as there is room for them.
  std::optional<PassPlan> plan_rider(ModelId model, const Room& room);

 private:
  void admit(ModelId model);
  void admit_riders(ModelId model, const Room& room);
  void admit_next(ModelId model);
  bool admits(ModelId model) const;
  int blocks_of_rider(ModelId model, bool fills_in) const;
  bool make_room(ModelId model);
  bool is_oldest_of_its_urgency(const Request& request) const;
  std::optional<ModelId> family_before(ModelId model) const;
  template <class Visit>
  void visit_family(ModelId model, Visit&& visit) const;
  PassPlan choose(ModelId model);
  PassPlan choose(ModelId model, const PassLimits& limits);
  PassLimits limits(ModelId model, bool exceeds_pool, int prompt_tokens) const;
  int prompt_tokens(ModelId model) const;
  bool any_batch_work(ModelId model) const;
  bool is_offloaded(ModelId model) const;
  int tokens_for_riders(ModelId lead) const;
  template <class IsShortEnough>
  int most_rows(int least, const IsShortEnough& is_short_enough) const;
  int passes_in_flight(ModelId model) const;
  bool waits_for_micro_batch(ModelId model, const PassPlan& pass) const;
  bool is_whole_micro_batch(ModelId model) const;

  SchedulerState& state_;
  const CacheAllocator& caches_;
  const Prefetcher& prefetcher_;
};

}  // namespace computron
