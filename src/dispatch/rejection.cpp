#include "computron/dispatch/rejection.h"

#include <fmt/format.h>

#include <cmath>

#include "computron/sched/deadlines.h"

namespace computron {
namespace {

// None of the model's passes has been timed, and none is to come.
bool is_first_of_its_model(const Scheduler& scheduler, ModelId model) {
  return !scheduler.costs().has_observed_pass(model) && !scheduler.open().models().contains(model);
}

// What can never be served there has an error of its own, and what needs no pass ends at once. A group that has nothing
// to do serves a late one all the same: what passes take is learned from passes alone, and a wrong prediction that
// rejects them all would never be mended.
std::optional<double> late_s(const Request& request, const ServingGroup& group, double now_s) {
  if (request.deadline_s == kNoDeadline || request.needs_no_pass()) return std::nullopt;
  const Scheduler& scheduler = group.scheduler();
  const ModelId model = *group.local(request.model);
  const bool might_be_in_time = request.deadline_s > 0 && request.due_s() > now_s;
  if (might_be_in_time && (scheduler.open().count() == 0 || is_first_of_its_model(scheduler, model))) {
    return std::nullopt;
  }
  const double end_s = now_s + scheduler.quote_s(model, request, now_s);
  return std::isfinite(end_s) && end_s > request.due_s() ? std::optional(end_s - request.arrival_s) : std::nullopt;
}

}  // namespace

std::optional<Completion> Rejection::end_of(const Request& request, const ServingGroup& group, double now_s) {
  if (!wanted_) return std::nullopt;
  if (line_ != request.id) late_s_ = late_s(request, group, now_s);
  line_ = request.id;
  if (!late_s_) return std::nullopt;
  return late_completion(request,
                         fmt::format("it would end {:.6g} s after its arrival, as predicted: its deadline is {} s",
                                     *late_s_, request.deadline_s),
                         now_s);
}

}  // namespace computron
