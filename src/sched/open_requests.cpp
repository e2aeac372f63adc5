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
  work_ps_ -= of.work_ps;
  of.work_ps = of.requests == 0 ? 0 : whole_ps(prompts_s(model, of, costs) + decodes_s(model, of, costs, growth_ratio));
  work_ps_ += of.work_ps;
}

double OpenRequests::prompts_s(ModelId model, const Of& of, const CostModel& costs) const {
  const auto requests = static_cast<double>(of.requests);
  const double mean_tokens = std::max(static_cast<double>(of.tokens.prompt_tokens) / requests, 1.0);
  const double prompts_a_pass = std::min(max_batch_tokens_ / mean_tokens, static_cast<double>(seqs_a_pass_));
  const auto rows = static_cast<int>(std::lround(prompts_a_pass * mean_tokens));
  return requests / prompts_a_pass * costs.bottleneck_s(model, std::clamp(rows, 1, max_batch_tokens_));
}

double OpenRequests::decodes_s(ModelId model, const Of& of, const CostModel& costs, double growth_ratio) const {
  const double generated = growth_ratio * static_cast<double>(of.tokens.generated_tokens);
  const double passes = std::max(generated - static_cast<double>(of.requests), 0.0) / seqs_a_pass_;
  return passes * costs.bottleneck_s(model, seqs_a_pass_);
}

double OpenRequests::alone_s(ModelId model, const Request& request, const CostModel& costs, double growth_ratio) const {
  const auto prompt = std::max(static_cast<int>(request.prompt.size()), 1);
  const int chunks = ceil_div(prompt, max_batch_tokens_);
  const double decodes = growth_ratio * static_cast<double>(work_of(request).generated_tokens) - 1;
  return chunks * costs.pass_s(model, std::min(prompt, max_batch_tokens_)) +
         std::max(decodes, 0.0) * costs.pass_s(model, 1);
}

}  // namespace computron
