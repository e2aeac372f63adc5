#include "computron/dispatch/serving_group.h"

#include <algorithm>
#include <cmath>

namespace computron {

ServingGroup::ServingGroup(DispatchGroup group) : scheduler_(group.scheduler), models_(std::move(group.models)) {
  for (ModelId local = 0; local < models_.size(); ++local) by_model_.emplace_back(models_[local], local);
  std::sort(by_model_.begin(), by_model_.end());
}

std::optional<ModelId> ServingGroup::local(ModelId job_model) const {
  const auto found = std::lower_bound(by_model_.begin(), by_model_.end(), std::pair(job_model, ModelId{0}));
  return found != by_model_.end() && found->first == job_model ? std::optional(found->second) : std::nullopt;
}

void ServingGroup::give(Request request) {
  request.model = *local(request.model);
  scheduler_->submit(std::move(request));
}

bool ServingGroup::accepts(const Request& request, ModelId local) const {
  return request.needs_no_pass() || scheduler_->why_refused(request, local).empty();
}

std::vector<Request> ServingGroup::take_back(ModelId job_model, std::size_t n, const ServingGroup& thief) {
  const ModelId thiefs = *thief.local(job_model);
  const auto accepts = [&thief, thiefs](const Request& request) { return thief.accepts(request, thiefs); };
  std::vector<Request> requests = scheduler_->recall(*local(job_model), n, accepts);
  for (Request& request : requests) request.model = job_model;
  return requests;
}

std::vector<Completion> ServingGroup::take_completions() {
  std::vector<Completion> completions = scheduler_->take_completions();
  for (Completion& completion : completions) completion.model = models_[completion.model];
  return completions;
}

double ServingGroup::swap_s(ModelId local) const {
  if (scheduler_->open().models().contains(local)) return 0;
  return (1 - scheduler_->resident_ratio(local)) * scheduler_->costs().swap_s(local);
}

ServingGroup::Cost ServingGroup::cost_of(const Request& request, double now_s) const {
  const ModelId model = *local(request.model);
  const double swap_s = this->swap_s(model);
  const std::size_t open = scheduler_->open().count_before(OpenRequests::work_of(request).rank);
  return {.seconds = scheduler_->quote_s(model, request, now_s) + swap_s * static_cast<double>(open),
          .resident = swap_s == 0,
          .open = open};
}

bool is_better(const ServingGroup::Cost& b, const ServingGroup::Cost& a) {
  constexpr double kRounding = 1e-9;
  const bool equal =
      a.seconds == b.seconds || std::abs(a.seconds - b.seconds) <= kRounding * std::min(a.seconds, b.seconds);
  if (!equal) return b.seconds < a.seconds;
  if (a.resident != b.resident) return b.resident;
  return b.open < a.open;
}

}  // namespace computron
