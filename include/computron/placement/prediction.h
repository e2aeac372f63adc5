// What is to be expected of a placement, as `computron plan` prints and writes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/placement/placement_evaluator.h"
#include "computron/requests/placement.h"

namespace computron {

struct GroupPrediction {
  std::int64_t rank_bytes = 0;  // weights of all its models, on the rank that holds most
  double utilisation = 0;       // share of the time in which its slowest stage computes
  double requests_per_s = 0;    // that come to it
  double attainment = 1;        // share of them that are served within their objective
  double swaps_per_s = 0;       // passes whose model is not all there
};

struct ModelPrediction {
  std::uint64_t requests = 0;
  double attainment = 1;
  double mean_latency_s = 0;  // of the served ones
};

struct Prediction {
  double duration_s = 0;  // of the requests, or of the last pass's end where that is later
  std::uint64_t requests = 0, served = 0;
  double attainment = 1;
  double mean_latency_s = 0, p99_latency_s = 0;  // of the served ones
  double makespan_s = 0;
  double swaps_per_s = 0;
  double link_bytes_per_s = 0;          // copied over the links of one rank of each stage
  std::vector<GroupPrediction> groups;  // as placed
  std::vector<ModelPrediction> models;  // [model]
};

// Of requests over duration_s seconds, 0 where all are there from the start.
Prediction predict(PlacementEvaluator& evaluator, const ModelPlacement& placement, std::span<const Arrival> arrivals,
                   double duration_s);

// As a job can have it: without groups that have no models; larger groups first, where memory allows, so that groups of
// 2, 4, 8 ranks do not straddle nodes. ConfigError where host memory does not allow to leave groups out.
ModelPlacement as_job(const SearchProblem& problem, const ModelPlacement& placement);

// The groups of a placement file, with the layers of each stage where the profiles say them.
std::vector<GroupSpec> group_specs(const ModelPlacement& placement, const std::vector<ModelProfile>& models);

// A placement file of these groups with what is predicted of them under "predicted"; `basis` says in words of which
// requests. Ends with a newline.
std::string placement_file(const std::vector<GroupSpec>& groups, const std::vector<ModelProfile>& models,
                           const Prediction& prediction, const std::string& basis);

// A line a group: group, ranks, tp x pp, bytes of a rank, utilisation, attainment, swaps a second, models; with heads.
std::string placement_table(const std::vector<GroupSpec>& groups, const Prediction& prediction);

// "6929 of 7388 requests served, mean 0.1885 s, p99 0.3898 s, 1.566 swaps/s".
std::string prediction_line(const Prediction& prediction);

}  // namespace computron
