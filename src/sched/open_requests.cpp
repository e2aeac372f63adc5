#include "computron/sched/open_requests.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace computron {
namespace {

std::int64_t whole_ps(double seconds) { return std::llround(1e12 * seconds); }

}  // namespace

OpenRequests::Work OpenRequests::work_of(const Request& request) {
  const int generated = request.encodes() ? 1 : std::max(request.max_tokens, 1);
  const std::size_t rank = request.priority < 0 ? 0 : request.priority == 0 ? 1 : 2;
  return {request.prompt.size(), static_cast<std::size_t>(generated), rank};
}

bool OpenRequests::has_any(const Model& model, std::size_t rank) {
  return std::any_of(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(rank) + 1,
                     [](const Of& of) { return of.requests > 0; });
}

void OpenRequests::add(ModelId model, const Work& work) {
  Of& of = models_[model][work.rank];
  if (!has_any(models_[model], kRanks - 1)) open_models_.insert(model);
  ++of.requests;
  of.tokens.prompt_tokens += work.prompt_tokens;
  of.tokens.generated_tokens += work.generated_tokens;
  ++counts_[work.rank];
}

void OpenRequests::remove(ModelId model, const Work& work) {
  Of& of = models_[model][work.rank];
  --of.requests;
  if (!has_any(models_[model], kRanks - 1)) open_models_.erase(model);
  of.tokens.prompt_tokens -= work.prompt_tokens;
  of.tokens.generated_tokens -= work.generated_tokens;
  --counts_[work.rank];
}

void OpenRequests::count_anew(ModelId model, const CostModel& costs, double growth_ratio) {
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    Of& of = models_[model][rank];
    const bool any = of.requests > 0;
    const std::int64_t now =
        any ? whole_ps(prompts_s(model, of, costs) + decodes_s(model, of, costs, growth_ratio)) : 0;
    work_ps_[rank] += now - std::exchange(of.work_ps, now);
  }
}

std::size_t OpenRequests::count_before(std::size_t rank) const {
  return std::accumulate(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(rank) + 1, std::size_t{0});
}

double OpenRequests::work_before_s(std::size_t rank) const {
  const auto end = work_ps_.begin() + static_cast<std::ptrdiff_t>(rank) + 1;
  return 1e-12 * static_cast<double>(std::accumulate(work_ps_.begin(), end, std::int64_t{0}));
}

std::set<ModelId> OpenRequests::models_before(std::size_t rank) const {
  std::set<ModelId> models;
  for (const ModelId model : open_models_) {
    if (has_any(models_[model], rank)) models.insert(models.end(), model);
  }
  return models;
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
