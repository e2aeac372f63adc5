// Which requests end instead of being given to a group, because they are predicted to be late there (OnLate::kReject).
#pragma once

#include <optional>

#include "computron/dispatch/serving_group.h"

namespace computron {

class Rejection {
 public:
  // One that rejects nothing, unless `wanted`.
  explicit Rejection(bool wanted) : wanted_(wanted) {}

  bool wanted() const { return wanted_; }
  // The end of a request that bears the job's number of its model, if it is not to be given to the group. The requests
  // of a line come one behind the other, and all of them fare as the first: it is that one's end that is predicted.
  std::optional<Completion> end_of(const Request& request, const ServingGroup& group, double now_s);

 private:
  bool wanted_;
  std::optional<RequestId> line_;  // that was asked about last, and
  std::optional<double> late_s_;   // if it is rejected, when it is predicted to end: seconds after its arrival
};

}  // namespace computron
