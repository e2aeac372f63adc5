// How long a model's oldest request has been passed by, so that work of every urgency progresses: where it has been in
// no pass for max_wait_s while the scheduler had more urgent work, it goes before all others (Request::aged) until it
// has its next token or has ended. The clock of a request begins when it becomes its model's oldest. So of a model at
// most one request has aged at a time, and at most one a max_wait_s ages: that is what the urgent ones wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "computron/sched/request.h"
#include "computron/sched/work_table.h"

namespace computron {

class Aging {
 public:
  Aging(std::size_t models, double max_wait_s) : max_wait_s_(max_wait_s), watched_(models) {}

  // Before each decision: ages who has been passed by for too long. Looks at the models that have work.
  void age(WorkTable& work, double now_s);
  // A pass was planned with these sequences of the model.
  void note_pass(ModelId model, std::span<const ModelWork::Handle> members, double now_s);

 private:
  struct Watched {
    std::optional<std::pair<RequestId, std::uint32_t>> request = {};  // id and part of the oldest
    double since_s = 0;                                               // that it was in no pass
  };
  double max_wait_s_;
  std::vector<Watched> watched_;  // [model]
};

}  // namespace computron
