// What the policy makes of what it is shown, for one decision: the run order, who loses pages for whom, and which
// models without work are worth prefetching. The run order is made at each decision; the other two are put in order
// only as far as they are asked for, among models that have pages, or lack some.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "computron/sched/eviction_order.h"
#include "computron/sched/model_list.h"
#include "computron/sched/policy.h"
#include "computron/sched/run_order.h"
#include "computron/sched/stage_pool.h"

namespace computron {

class Agenda {
 public:
  Agenda(std::size_t models, std::size_t stages, std::unique_ptr<Policy> policy);

  const Policy& policy() const { return *policy_; }
  const ModelView& view(ModelId model) const { return views_[model]; }
  // What the policy is shown of the model from now on. To be called whenever it has changed, before decide().
  void show(const ModelView& view);
  // Of a model that has work, before each decide(): what changes with time (ModelView).
  void show_times(ModelId model, double missing_s, double swap_s) {
    views_[model].missing_s = missing_s;
    views_[model].swap_s = swap_s;
  }

  // A new decision. `with_work`: the models whose views have work, in any order. `expects_more`: requests may come that
  // are not known yet; without that nothing is prefetched for models without work. `now_s` never decreases.
  void decide(std::span<const ModelId> with_work, const ActiveModel& active, bool expects_more, double now_s);

  const RunOrder& run_order() const { return run_order_; }
  bool is_first(ModelId model) const { return run_order_.place(model) == 0; }

  // Whose pages may be evicted for a model of the run order on a stage: those that run later or not at all.
  class EvictableFor : public Evictable {
   public:
    // `and_itself`: its own pages last.
    EvictableFor(Agenda& agenda, ModelId model, std::size_t stage, bool and_itself);
    int pages(const StagePool& pool, FrameKind kind) const override;
    std::optional<FrameId> first(const StagePool& pool, FrameKind kind) override;

   private:
    Agenda& agenda_;
    ModelId model_;
    std::size_t stage_;
    bool and_itself_;
  };
  EvictableFor evictable_for(ModelId model, std::size_t stage, bool and_itself = false) {
    return {*this, model, stage, and_itself};
  }

  // Models without work that will probably have some before those do whose pages they may have evicted: candidates.
  // Whether one of them is as `is` says.
  bool any_candidate(const std::function<bool(ModelId)>& is);
  // The one that is wanted soonest, if any.
  std::optional<ModelId> first_candidate();
  // Those that lack pages on a stage, the one that is wanted soonest first, until `visit` returns false. They may have
  // pages evicted of models that will be silent for twice as long, the longest first.
  void visit_candidates(const StagePool& pool, const std::function<bool(ModelId, Evictable&)>& visit);

 private:
  struct Candidate {
    double silence_s;
    ModelId model;
    bool operator<(const Candidate& other) const {
      return std::tie(silence_s, model) < std::tie(other.silence_s, other.model);
    }
    bool operator>(const Candidate& other) const { return other < *this; }
  };
  bool still_expected(ModelId model);
  EvictableModels evictable_for(const Candidate& candidate, const StagePool& pool) const;

  std::unique_ptr<Policy> policy_;
  std::vector<ModelView> views_;  // [model]
  double now_s_ = 0;
  bool expects_more_ = false;
  RunOrder run_order_;
  struct Keyed {
    std::int32_t urgency;  // before the policy's key
    RunKey key;
    ModelId model;
  };
  std::vector<Keyed> keyed_;                    // the run order with its keys
  std::vector<EvictionOrder> eviction_orders_;  // [stage]
  std::vector<UnpinnedPrefix> kept_pages_;      // [stage] of the run order's first models
  ModelList expected_;                          // without work, and will probably have some; some may be no longer
};

}  // namespace computron
