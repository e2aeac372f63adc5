// AlpaServe's experiments as problems for a search.
#pragma once

#include <cmath>

#include "computron/placement/placement_evaluator.h"
#include "tests/placement/profiles.h"

namespace computron {

constexpr std::int64_t kGpuBytes = std::int64_t{13} << 30;  // of a V100 for weights

struct Experiment {
  std::size_t models;
  int gpus;
  double slo_scale;  // of a model's latency on one GPU
  double rate_per_s;
  double cv;
};

inline std::vector<Arrival> skewed_arrivals(const Experiment& experiment, double duration_s, std::uint32_t seed) {
  return make_arrivals(GammaGaps{experiment.cv}, power_law_rates(experiment.models, experiment.rate_per_s, .5),
                       {0, duration_s}, seed);
}

inline SearchProblem problem_of(const Experiment& experiment, const std::vector<ModelProfile>& kinds) {
  SearchProblem problem;
  problem.models = repeated(kinds, experiment.models);
  for (const ModelProfile& model : problem.models) {
    const auto alone = static_cast<double>(model.shapes.at({1, 1}).stage_s[0]);
    problem.slo_s.push_back(static_cast<float>(experiment.slo_scale * alone));
  }
  problem.ranks = experiment.gpus;
  problem.memory.device_bytes = kGpuBytes;
  return problem;
}

// As AlpaServe reports it.
inline double reported(PlacementEvaluator& evaluator, const ModelPlacement& placement,
                       const std::vector<Arrival>& arrivals) {
  std::vector<RequestOutcome> outcomes;
  evaluator.simulate(placement, arrivals, &outcomes);
  return trimmed_attainment(arrivals, outcomes);
}

}  // namespace computron
