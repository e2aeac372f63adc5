#include "src/apps/rescoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "computron/base/error.h"

namespace computron {
namespace {

constexpr double kPassesToJudge = 5e4, kPassesToPredict = 2.5e5;  // that are played, some 10 us each
constexpr double kAtOnce = 1e18;                                  // bytes a second: what is always there is copied so

}  // namespace

std::span<const Arrival> Rescoring::first(std::span<const Arrival> arrivals, double passes) const {
  const auto& models = evaluator_.problem().models;
  std::size_t count = 0;
  for (double left = passes; count < arrivals.size() && left > 0; ++count) {
    left -= is_encoder(models[arrivals[count].model]) ? 1 : options_.max_tokens;
  }
  return arrivals.first(count);
}

// Requests that would be late are rejected where attainment counts, as the search has it.
ClusterOptions Rescoring::cluster_of(const ModelPlacement& placement) const {
  const SearchProblem& problem = evaluator_.problem();
  ClusterOptions cluster;
  const char* const usual = problem.objective == Objective::kMakespan ? "throughput" : "balanced";
  cluster.policy = options_.policy.empty() ? usual : options_.policy;
  cluster.max_seqs = options_.max_seqs;
  cluster.on_late = problem.objective == Objective::kAttainment ? OnLate::kReject : OnLate::kServe;
  cluster.max_batch_tokens = options_.max_batch_tokens > 0
                                 ? options_.max_batch_tokens
                                 : usual_batch_tokens(problem.models, placement, options_.prompt_tokens);
  cluster.device_bytes = problem.memory.device_bytes;
  cluster.host_cache_bytes = problem.memory.device_bytes / 8;
  cluster.link_bytes_per_s = kAtOnce;
  if (const auto& swapping = problem.memory.swapping) {
    cluster.page_bytes = swapping->page_bytes;
    cluster.link_bytes_per_s = swapping->link_bytes_per_s;
  }
  if (options_.latency_s > 0) cluster.latency_s = options_.latency_s;
  cluster.stage_penalty = problem.stage_penalty;
  cluster.constant_s = problem.constant_s;
  return cluster;
}

Prediction Rescoring::play(const ModelPlacement& placement, std::span<const Arrival> arrivals,
                           double duration_s) const {
  const SearchProblem& problem = evaluator_.problem();
  std::vector<float> slo_s = problem.slo_s;
  if (problem.objective != Objective::kAttainment) std::ranges::fill(slo_s, std::numeric_limits<float>::infinity());
  return computron::play(problem.models, placement,
                         requests_of(arrivals, problem.models, slo_s, options_.prompt_tokens, options_.max_tokens),
                         duration_s, cluster_of(placement));
}

std::optional<ModelPlacement> Rescoring::best() {
  const SearchProblem& problem = evaluator_.problem();
  const auto training = first(problem.arrivals, kPassesToJudge);
  std::optional<ModelPlacement> best;
  double best_score = 0;
  std::optional<bool> lacks;  // models, as the best one of the search does
  for (const ScoredPlacement& candidate : evaluator_.best_divisions(options_.placements)) {
    if (options_.stop && options_.stop()) break;
    const bool lacks_models = evaluator_.lacks_models(candidate.placement);
    if (lacks.value_or(lacks_models) != lacks_models) continue;
    lacks = lacks_models;
    try {
      const ModelPlacement placement = as_job(problem, candidate.placement);
      if (placement.empty()) continue;
      const double score = score_of(problem.objective, play(placement, training, /*duration_s=*/0));
      ++played_;
      if (best && !(score > best_score)) continue;
      best = placement;
      best_score = score;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig) throw;  // it has no room for a cache beside the weights, say
    }
  }
  return best;
}

Prediction Rescoring::predict(const ModelPlacement& placement, std::span<const Arrival> arrivals, double duration_s,
                              std::string& part) {
  const auto played = first(arrivals, kPassesToPredict);
  part = played.size() == arrivals.size() ? "" : fmt::format(", the first {} requests", played.size());
  Prediction prediction = play(placement, played, played.size() == arrivals.size() ? duration_s : 0);
  if (evaluator_.problem().memory.swapping) return prediction;
  prediction.swaps_per_s = prediction.link_bytes_per_s = 0;  // only the first fetches, which take no time
  for (GroupPrediction& group : prediction.groups) group.swaps_per_s = 0;
  return prediction;
}

}  // namespace computron
