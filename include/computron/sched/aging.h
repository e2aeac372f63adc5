// So that work of every urgency progresses: a model's oldest request that others have passed by for max_wait_s, because
// they are more urgent, goes before all others (Request::aged) until it has its next token or has ended.
//
// Its clock begins with the first pass that is planned without it while a more urgent request is open, wherever that is
// and whoever's pass it is. It ends when the request is in a pass itself, when it is the oldest no longer, or when a
// pass is planned and nobody more urgent is open: then it waits for nobody but the policy. So of a model at most one
// request has aged at a time, and one a max_wait_s at most: that is what the urgent ones wait for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "computron/sched/request.h"
#include "computron/sched/work_table.h"

namespace computron {

class Aging {
 public:
  Aging(std::size_t models, double max_wait_s) : max_wait_s_(max_wait_s), watched_(models) {}

  // Before a decision: ages who has been passed by for too long. Both look at the models that have work.
  void age(WorkTable& work, double now_s);
  // A pass has been planned. `least`: the urgency of the most urgent request that has not ended.
  void note_pass(const WorkTable& work, std::int32_t least, double now_s);

 private:
  struct Watched {
    RequestId request = 0;  // the oldest, that is passed by
    std::uint32_t part = 0;
    std::optional<double> since_s = {};  // none: it is not
    bool is(const Request& oldest) const { return since_s && oldest.id == request && oldest.part == part; }
  };
  double max_wait_s_;
  std::vector<Watched> watched_;  // [model]
};

}  // namespace computron
