#include "computron/placement/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "computron/base/error.h"
#include "computron/base/size.h"

namespace computron {
namespace {

using nlohmann::ordered_json;

double ratio(double part, double whole, double otherwise) { return whole > 0 ? part / whole : otherwise; }

// The smallest latency that 99 % of the served requests do not exceed; 0 where none is served.
double p99_of(const std::vector<RequestOutcome>& outcomes) {
  std::vector<double> latencies;
  for (const RequestOutcome& outcome : outcomes) {
    if (outcome.good) latencies.push_back(outcome.latency_s);
  }
  if (latencies.empty()) return 0;
  const std::size_t at = (99 * latencies.size() + 99) / 100 - 1;
  std::ranges::nth_element(latencies, latencies.begin() + static_cast<std::ptrdiff_t>(at));
  return latencies[at];
}

GroupPrediction predict_group(const SearchProblem& problem, const PlacedGroup& placed, const SimulationResult& result,
                              std::size_t group, double duration_s) {
  GroupPrediction own;
  own.rank_bytes = std::ranges::max(bytes_together(problem.models, placed));
  own.utilisation = ratio(result.busy_s[group], duration_s, 0);
  own.requests_per_s = ratio(result.dispatched[group], duration_s, 0);
  own.attainment = ratio(result.served[group], result.dispatched[group], 1);
  own.swaps_per_s = ratio(static_cast<double>(result.group_swaps[group]), duration_s, 0);
  return own;
}

ModelPrediction predict_model(const SimulationResult& result, std::size_t model) {
  const double good = result.good[model];
  return {.requests = result.requests[model],
          .attainment = ratio(good, result.requests[model], 1),
          .mean_latency_s = ratio(result.latency_s[model], good, 0)};
}

ordered_json to_json(const GroupSpec& group) {
  ordered_json own = {{"tp", group.tp}, {"pp", group.pp}, {"models", group.models}};
  if (!group.layers.empty()) own["layers"] = group.layers;
  return own;
}

ordered_json to_json(const GroupPrediction& group) {
  return {{"rank_bytes", group.rank_bytes},
          {"utilisation", group.utilisation},
          {"requests_per_s", group.requests_per_s},
          {"attainment", group.attainment},
          {"swaps_per_s", group.swaps_per_s}};
}

ordered_json predicted_json(const std::vector<ModelProfile>& models, const Prediction& prediction,
                            const std::string& basis) {
  ordered_json predicted = {{"basis", basis},
                            {"duration_s", prediction.duration_s},
                            {"requests", prediction.requests},
                            {"attainment", prediction.attainment},
                            {"mean_latency_s", prediction.mean_latency_s},
                            {"p99_latency_s", prediction.p99_latency_s},
                            {"makespan_s", prediction.makespan_s},
                            {"swaps_per_s", prediction.swaps_per_s},
                            {"link_bytes_per_s", prediction.link_bytes_per_s},
                            {"groups", ordered_json::array()},
                            {"models", ordered_json::object()}};
  for (const GroupPrediction& group : prediction.groups) predicted["groups"].push_back(to_json(group));
  for (std::size_t m = 0; m < models.size(); ++m) {
    const ModelPrediction& own = prediction.models[m];
    predicted["models"][models[m].id] = {
        {"requests", own.requests}, {"attainment", own.attainment}, {"mean_latency_s", own.mean_latency_s}};
  }
  return predicted;
}

// "a, b, c"; of many the first ones: "a, b and 10 more".
std::string names(const std::vector<std::string>& ids) {
  constexpr std::size_t kWidth = 48;
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && text.size() + ids[i].size() > kWidth) return text + fmt::format(" and {} more", ids.size() - i);
    text += (i > 0 ? ", " : "") + ids[i];
  }
  return text;
}

}  // namespace

Prediction predict(PlacementEvaluator& evaluator, const ModelPlacement& placement, std::span<const Arrival> arrivals,
                   double duration_s) {
  std::vector<RequestOutcome> outcomes;
  const SimulationResult result = evaluator.simulate(placement, arrivals, &outcomes);
  Prediction prediction;
  prediction.duration_s = std::max(duration_s, result.makespan_s);
  prediction.requests = result.all_requests();
  prediction.attainment = result.attainment();
  prediction.served = static_cast<std::uint64_t>(std::ranges::count(outcomes, true, &RequestOutcome::good));
  const double sum_s = std::accumulate(result.latency_s.begin(), result.latency_s.end(), 0.0);
  prediction.mean_latency_s = ratio(sum_s, static_cast<double>(prediction.served), 0);
  prediction.p99_latency_s = p99_of(outcomes);
  prediction.makespan_s = result.makespan_s;
  prediction.swaps_per_s = ratio(static_cast<double>(result.swaps), prediction.duration_s, 0);
  prediction.link_bytes_per_s = ratio(result.swapped_bytes, prediction.duration_s, 0);
  for (std::size_t g = 0; g < placement.size(); ++g) {
    prediction.groups.push_back(predict_group(evaluator.problem(), placement[g], result, g, prediction.duration_s));
  }
  for (std::size_t m = 0; m < result.requests.size(); ++m) prediction.models.push_back(predict_model(result, m));
  return prediction;
}

ModelPlacement as_job(const SearchProblem& problem, const ModelPlacement& placement) {
  ModelPlacement busy;
  std::ranges::copy_if(placement, std::back_inserter(busy), [](const auto& group) { return !group.models.empty(); });
  ModelPlacement ordered = busy;
  std::ranges::stable_sort(ordered, std::ranges::greater{}, [](const auto& group) { return group.shape.ranks(); });
  if (fits(problem, ordered)) return ordered;
  if (fits(problem, busy)) return busy;
  throw ConfigError(
      fmt::format("placement: host memory is too small for models in all groups of {} ranks", problem.ranks));
}

std::vector<GroupSpec> group_specs(const ModelPlacement& placement, const std::vector<ModelProfile>& models) {
  std::vector<GroupSpec> groups;
  for (const PlacedGroup& placed : placement) {
    GroupSpec group{.tp = placed.shape.tp, .pp = placed.shape.pp, .models = {}, .layers = {}};
    auto numbers = placed.models;
    std::ranges::sort(numbers);
    for (const std::uint32_t m : numbers) {
      const ModelProfile& model = models.at(m);
      group.models.push_back(model.id);
      if (const auto& layers = model.find(placed.shape)->layers; !layers.empty()) group.layers[model.id] = layers;
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

std::string placement_file(const std::vector<GroupSpec>& groups, const std::vector<ModelProfile>& models,
                           const Prediction& prediction, const std::string& basis) {
  // The basis names files, whose names need not be UTF-8.
  constexpr auto kReplace = ordered_json::error_handler_t::replace;
  std::string lines;  // one a group
  for (const GroupSpec& group : groups) lines += (lines.empty() ? "\n  " : ",\n  ") + to_json(group).dump();
  return fmt::format("{{\"groups\": [{}],\n\"predicted\": {}}}\n", lines,
                     predicted_json(models, prediction, basis).dump(1, ' ', false, kReplace));
}

std::string placement_table(const std::vector<GroupSpec>& groups, const Prediction& prediction) {
  std::string text = fmt::format("{:>5}  {:>9}  {:>7}  {:>10}  {:>11}  {:>10}  {:>7}  {}\n", "group", "ranks",
                                 "tp x pp", "a rank", "utilisation", "attainment", "swaps/s", "models");
  int first = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupPrediction& own = prediction.groups.at(g);
    const int ranks = groups[g].tp * groups[g].pp;
    const std::string which = ranks == 1 ? std::to_string(first) : fmt::format("{}-{}", first, first + ranks - 1);
    text += fmt::format("{:>5}  {:>9}  {:>7}  {:>10}  {:>11.3f}  {:>10.3f}  {:>7.3f}  {}\n", g, which,
                        fmt::format("{} x {}", groups[g].tp, groups[g].pp),
                        format_size(static_cast<std::size_t>(own.rank_bytes)), own.utilisation, own.attainment,
                        own.swaps_per_s, names(groups[g].models));
    first += ranks;
  }
  return text;
}

std::string prediction_line(const Prediction& prediction) {
  return fmt::format("{} of {} requests served, mean {:.4g} s, p99 {:.4g} s, {:.4g} swaps/s", prediction.served,
                     prediction.requests, prediction.mean_latency_s, prediction.p99_latency_s, prediction.swaps_per_s);
}

}  // namespace computron
