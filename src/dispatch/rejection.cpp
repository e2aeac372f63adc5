#include "computron/dispatch/rejection.h"

#include <fmt/format.h>

#include <cmath>

#include "computron/sched/deadlines.h"

namespace computron {
namespace {

// What can never be served there has an error of its own, and what needs no pass ends at once.
std::optional<double> late_s(const Request& request, const ServingGroup& group, double now_s) {
  if (request.deadline_s == kNoDeadline || request.needs_no_pass()) return std::nullopt;
  const double end_s = now_s + group.scheduler().quote_s(*group.local(request.model), request, now_s);
  return std::isfinite(end_s) && end_s > request.due_s() ? std::optional(end_s - request.arrival_s) : std::nullopt;
}

}  // namespace

std::optional<Completion> Rejection::end_of(const Request& request, const ServingGroup& group, double now_s) {
  if (!wanted_) return std::nullopt;
  if (line_ != request.id) late_s_ = late_s(request, group, now_s);
  line_ = request.id;
  if (!late_s_) return std::nullopt;
  return late_completion(request,
                         fmt::format("it would end {:.3g} s after its arrival, as predicted: its deadline is {} s",
                                     *late_s_, request.deadline_s),
                         now_s);
}

}  // namespace computron
