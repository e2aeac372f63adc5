// So that work of every urgency progresses: a model's oldest request that others have passed by for max_wait_s, because
// they are more urgent, goes before all others (Request::aged) until it has its next token or has ended.
//
// Its clock begins with its latest token (a pass that has but a chunk of a prompt, which may be lost again, ends
// nothing), or when it becomes the oldest. It runs from pass to pass while a more urgent request is open, wherever that
// is and whoever's passes they are; meanwhile it stands: then the request waits for nobody but the policy. So of a
// model at most one request has aged at a time, and one a max_wait_s at most: that is what the urgent ones wait for.
#pragma once

#include <cstdint>
#include <vector>

#include "computron/sched/request.h"
#include "computron/sched/work_table.h"

namespace computron {

// A model's oldest request, until its next token.
struct OldestRequest {
  RequestId id = 0;
  std::uint32_t part = 0;
  int tokens_to_come = 0;  // as Sequence's
  bool operator==(const OldestRequest&) const = default;
};

class Aging {
 public:
  Aging(std::size_t models, double max_wait_s) : max_wait_s_(max_wait_s), watched_(models) {}

  // Before a decision: ages who has been passed by for too long. Both look at the models that have work.
  void age(WorkTable& work, double now_s);
  // A pass has been planned. `least`: the urgency of the most urgent request that has not ended.
  void note_pass(const WorkTable& work, std::int32_t least, double now_s);

 private:
  struct Watched {
    OldestRequest oldest = {};
    double at_s = 0;         // of the latest pass
    bool passed_by = false;  // somebody more urgent was open then
    double passed_s = 0;     // of the clock until then
    bool is_due(double now_s, double max_wait_s) const;
  };
  double max_wait_s_;
  std::vector<Watched> watched_;  // [model]
};

}  // namespace computron
