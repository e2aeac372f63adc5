#include "computron/plan/predicted_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "computron/base/error.h"
#include "computron/sched/deadlines.h"

namespace computron {
namespace {

constexpr double kUnserved = 1e9;  // seconds that a placement is worse if it serves nobody

double ratio(double part, double whole, double otherwise) { return whole > 0 ? part / whole : otherwise; }

struct Count {
  std::uint64_t requests = 0, met = 0, served = 0;
  double latency_s = 0;  // summed over the served ones

  void add(const Completion& completion) {
    const bool is_served = completion.error_code.empty();
    ++requests;
    met += met_deadline(completion) ? 1 : 0;
    served += is_served ? 1 : 0;
    if (is_served) latency_s += completion.finished_s - completion.arrival_s;
  }
  double attainment() const { return ratio(static_cast<double>(met), static_cast<double>(requests), 1); }
  double mean_latency_s() const { return ratio(latency_s, static_cast<double>(served), 0); }
};

struct Counts {
  Counts(std::size_t models, const ModelPlacement& placement) : by_model(models), by_group(placement.size()) {
    std::vector<bool> placed(models, false);
    for (const PlacedGroup& group : placement) {
      for (const std::uint32_t model : group.models) placed.at(model) = true;
    }
    is_placed = std::move(placed);
  }

  void add(const Completion& completion) {
    all.add(completion);
    by_model.at(completion.model).add(completion);
    if (is_placed[completion.model]) by_group.at(completion.group).add(completion);
    if (!completion.error_code.empty()) return;
    latencies_s.push_back(completion.finished_s - completion.arrival_s);
    makespan_s = std::max(makespan_s, completion.finished_s);
  }
  // The smallest latency that 99 % of the served requests do not exceed; 0 where none is served.
  double p99_s() {
    if (latencies_s.empty()) return 0;
    const std::size_t at = (99 * latencies_s.size() + 99) / 100 - 1;
    std::ranges::nth_element(latencies_s, latencies_s.begin() + static_cast<std::ptrdiff_t>(at));
    return latencies_s[at];
  }

  Count all;
  std::vector<Count> by_model, by_group;
  std::vector<bool> is_placed;
  std::vector<double> latencies_s;
  double makespan_s = 0;
};

}  // namespace

Prediction predict(const std::vector<ModelProfile>& models, const ModelPlacement& placement, const VirtualRun& run,
                   double duration_s) {
  ensure(run.groups.size() == placement.size(), "the run is of another placement");
  Counts counts(models.size(), placement);
  for (const Completion& completion : run.completions) counts.add(completion);
  Prediction prediction{.duration_s = std::max(duration_s, counts.makespan_s),
                        .requests = counts.all.requests,
                        .served = counts.all.served,
                        .attainment = counts.all.attainment(),
                        .mean_latency_s = counts.all.mean_latency_s(),
                        .p99_latency_s = counts.p99_s(),
                        .makespan_s = counts.makespan_s,
                        .groups = {},
                        .models = {}};
  const double all_s = prediction.duration_s;
  prediction.swaps_per_s = ratio(static_cast<double>(run.swaps), all_s, 0);
  prediction.link_bytes_per_s = ratio(static_cast<double>(run.link_bytes), all_s, 0);
  for (std::size_t g = 0; g < placement.size(); ++g) {
    const VirtualRun::Group& group = run.groups[g];
    const Count& own = counts.by_group[g];
    prediction.groups.push_back({.rank_bytes = std::ranges::max(bytes_together(models, placement[g])),
                                 .utilisation = ratio(*std::ranges::max_element(group.compute_s), all_s, 0),
                                 .requests_per_s = ratio(static_cast<double>(own.requests), all_s, 0),
                                 .attainment = own.attainment(),
                                 .swaps_per_s = ratio(static_cast<double>(group.swaps), all_s, 0)});
  }
  for (const Count& own : counts.by_model) {
    prediction.models.push_back(
        {.requests = own.requests, .attainment = own.attainment(), .mean_latency_s = own.mean_latency_s()});
  }
  return prediction;
}

Prediction play(const std::vector<ModelProfile>& models, const ModelPlacement& placement, std::vector<Request> requests,
                double duration_s, const ClusterOptions& options) {
  VirtualCluster cluster(models, placement, options);
  return predict(models, placement, cluster.run(std::move(requests)), duration_s);
}

double score_of(Objective objective, const Prediction& prediction) {
  const double unserved =
      1 - ratio(static_cast<double>(prediction.served), static_cast<double>(prediction.requests), 1);
  switch (objective) {
    case Objective::kAttainment:
      return prediction.attainment - prediction.mean_latency_s / 1e4;
    case Objective::kMeanLatency:
      return -prediction.mean_latency_s - kUnserved * unserved;
    case Objective::kMakespan:
      return -prediction.makespan_s - prediction.mean_latency_s / 1e4 - kUnserved * unserved;
  }
  return 0;
}

std::string format_times(const VirtualRun& run, const RunTimes& times) {
  std::uint64_t steps = 0;
  for (const VirtualRun::Group& group : run.groups) steps += group.steps;
  const double us = steps > 0 ? 1e6 / static_cast<double>(steps) : 0;
  return fmt::format("{} steps in {:.1f} s, {:.1f} us each: {:.1f} to decide, {:.1f} the ranks, {:.1f} the rest", steps,
                     times.all_s, us * times.all_s, us * times.decide_s, us * times.mesh_s,
                     us * (times.all_s - times.decide_s - times.mesh_s));
}

}  // namespace computron
