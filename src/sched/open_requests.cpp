#include "computron/sched/open_requests.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace computron {
namespace {

std::int64_t whole_ps(double seconds) { return std::llround(1e12 * seconds); }

}  // namespace

OpenRequests::Work OpenRequests::work_of(const Request& request) {
  const int generated = request.encodes() ? 1 : std::max(request.max_tokens, 1);
  return {request.prompt.size(), static_cast<std::size_t>(generated)};
}

void OpenRequests::add(ModelId model, const Work& work) {
  Of& of = models_[model];
  if (of.requests++ == 0) open_models_.insert(model);
  of.tokens.prompt_tokens += work.prompt_tokens;
  of.tokens.generated_tokens += work.generated_tokens;
  ++count_;
}

void OpenRequests::remove(ModelId model, const Work& work) {
  Of& of = models_[model];
  if (--of.requests == 0) open_models_.erase(model);
  of.tokens.prompt_tokens -= work.prompt_tokens;
  of.tokens.generated_tokens -= work.generated_tokens;
  --count_;
}

void OpenRequests::count_anew(ModelId model, const CostModel& costs, double growth_ratio) {
  Of& of = models_[model];
  const auto prompt_ps = whole_ps(costs.bottleneck_s(model, max_batch_tokens_) / max_batch_tokens_);
  const auto token_ps = whole_ps(costs.pass_s(model, max_seqs_) / max_seqs_ * growth_ratio);
  work_ps_ -= of.work_ps;
  of.work_ps = prompt_ps * static_cast<std::int64_t>(of.tokens.prompt_tokens) +
               token_ps * static_cast<std::int64_t>(of.tokens.generated_tokens);
  work_ps_ += of.work_ps;
}

double OpenRequests::alone_s(ModelId model, const Request& request, const CostModel& costs, double growth_ratio) const {
  const auto prompt = std::max(static_cast<int>(request.prompt.size()), 1);
  const int chunks = ceil_div(prompt, max_batch_tokens_);
  const double decodes = growth_ratio * static_cast<double>(work_of(request).generated_tokens) - 1;
  return chunks * costs.pass_s(model, std::min(prompt, max_batch_tokens_)) +
         std::max(decodes, 0.0) * costs.pass_s(model, 1);
}

}  // namespace computron
