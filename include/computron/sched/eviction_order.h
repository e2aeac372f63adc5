// Who loses pages first on one stage, during one decision: the policy's order of all models that have pages there, but
// for pinned ones and the first of the run order. Only as much of it as is asked for is put in order.
#pragma once

#include <vector>

#include "computron/sched/policy.h"
#include "computron/sched/run_order.h"
#include "computron/sched/stage_pool.h"

namespace computron {

class EvictionOrder {
 public:
  // A new decision: nothing is in order yet.
  void reset() { ranked_ = false; }

  // The frame, of a kind, of the last page of the first model that may lose one: of those that come behind `place` in
  // the run order, or are not in it. A page that several models have goes when all of them may lose pages and the last
  // one's turn has come. `views`: [model], the same during a decision. A model that has lost all its pages comes no
  // more.
  std::optional<FrameId> first(const StagePool& pool, FrameKind kind, const Policy& policy,
                               std::span<const ModelView> views, const RunOrder& order, std::size_t place,
                               double now_s);
  // Whether first() lets a model that has pages lose them, sooner or later.
  static bool may_lose(ModelId model, const RunOrder& order, std::size_t place, std::span<const ModelView> views) {
    return !views[model].pinned && is_behind(order.place(model), place);
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Rank {
    double silence_s;
    StepId last_used;
    ModelId model;
    // For a heap: the first to lose pages is in front.
    bool operator<(const Rank& other) const;
  };
  void rank(const StagePool& pool, const Policy& policy, std::span<const ModelView> views, const RunOrder& order,
            double now_s);
  // Those that are not in the run order run behind all others, and have pages of none of those evicted.
  static bool is_behind(std::size_t its_place, std::size_t place) {
    return its_place == RunOrder::kNotInIt || (place != RunOrder::kNotInIt && its_place > place);
  }
  std::optional<FrameId> first_ranked(const StagePool& pool, FrameKind kind, const RunOrder& order, std::size_t place);

  bool ranked_ = false;
  std::vector<Rank> heap_;         // those that are not in order yet
  std::vector<ModelId> ordered_;   // those before them
  std::vector<std::size_t> turn_;  // [model] its place in ordered_; kNone: it is not there
  std::size_t passed_ = 0;         // of `ordered_`: so many have no pages left
};

}  // namespace computron
