#include "computron/model/sampler.h"

#include <algorithm>
#include <cmath>

namespace computron {
namespace {

// max and log Σ exp over all parts.
double log_normalizer(std::span<const LogitSummary* const> parts) {
  float max = -INFINITY;
  for (const LogitSummary* part : parts) {
    if (part->count > 0) max = std::max(max, part->max);
  }
  double sum = 0;
  for (const LogitSummary* part : parts) {
    if (part->count > 0) sum += part->sum_exp * std::exp(static_cast<double>(part->max) - max);
  }
  return max + std::log(sum);
}

std::vector<std::pair<TokenId, float>> best_logits(std::span<const LogitSummary* const> parts, std::size_t count) {
  std::vector<std::pair<TokenId, float>> all;
  for (const LogitSummary* part : parts) {
    for (int i = 0; i < part->count; ++i) all.emplace_back(part->tokens[i], part->logits[i]);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  all.resize(std::min(all.size(), count));
  return all;
}

}  // namespace

SampledRow sample_greedy(std::span<const LogitSummary* const> parts, int top) {
  SampledRow row;
  for (const LogitSummary* part : parts) row.finite &= part->finite != 0;
  if (!row.finite) return row;

  const double normalizer = log_normalizer(parts);
  row.top = best_logits(parts, static_cast<std::size_t>(std::max(top, 1)));
  ensure(!row.top.empty(), "no logits to sample from");
  for (auto& [token, logit] : row.top) logit = static_cast<float>(logit - normalizer);
  row.token = row.top.front().first;
  row.logprob = row.top.front().second;
  for (const LogitSummary* part : parts) {
    if (part->has_target) row.target_logprob = static_cast<float>(part->target_logit - normalizer);
  }
  row.top.resize(std::min(row.top.size(), static_cast<std::size_t>(std::max(top, 0))));
  return row;
}

}  // namespace computron
