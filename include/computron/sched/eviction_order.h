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

  // The first model with a resident page that comes behind `place` in the run order, or is not in it. `views`: [model],
  // the same during a decision. A model that has lost all its pages comes no more.
  std::optional<ModelId> first(const StagePool& pool, const Policy& policy, std::span<const ModelView> views,
                               const RunOrder& order, std::size_t place, double now_s);

 private:
  struct Rank {
    double silence_s;
    StepId last_used;
    ModelId model;
    // For a heap: the first to lose pages is in front.
    bool operator<(const Rank& other) const;
  };
  void rank(const StagePool& pool, const Policy& policy, std::span<const ModelView> views, const RunOrder& order,
            double now_s);
  std::optional<ModelId> first_ranked(const StagePool& pool, const RunOrder& order, std::size_t place);

  bool ranked_ = false;
  std::vector<Rank> heap_;        // those that are not in order yet
  std::vector<ModelId> ordered_;  // those before them
  std::size_t passed_ = 0;        // of `ordered_`: so many have no pages left
};

}  // namespace computron
