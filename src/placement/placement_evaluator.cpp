#include "computron/placement/placement_evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "computron/base/error.h"
#include "src/placement/memory_use.h"

namespace computron {
namespace {

constexpr double kUnserved = 1e9;    // seconds that a placement is worse if it serves nobody
constexpr double kIncomplete = 1e6;  // by which it is worse for each model without a group, and group without a model
constexpr std::size_t kDivisionsKept = 16;

SearchProblem checked(SearchProblem problem) {
  const auto bad = [](const std::string& why) { throw Error(ExitCode::kUsage, "placement: " + why); };
  check_profiles(problem.models);
  if (problem.models.empty()) bad("there are no models");
  if (problem.ranks < 1) bad(fmt::format("{} ranks", problem.ranks));
  if (problem.slo_s.size() != problem.models.size()) bad("there is not one objective a model");
  for (const float slo_s : problem.slo_s) {
    if (!(slo_s > 0)) bad(fmt::format("an objective of {} s", slo_s));
  }
  if (problem.memory.device_bytes < 1) bad(fmt::format("ranks have {} bytes", problem.memory.device_bytes));
  if (const auto& swapping = problem.memory.swapping) {
    if (!(swapping->link_bytes_per_s > 0)) bad(fmt::format("links copy {} bytes a second", swapping->link_bytes_per_s));
    if (swapping->ranks_per_node < 1) bad(fmt::format("nodes have {} ranks", swapping->ranks_per_node));
    if (swapping->page_bytes < 1) bad(fmt::format("pages have {} bytes", swapping->page_bytes));
    if (swapping->host_bytes < 1) bad(fmt::format("ranks have {} bytes of host memory", swapping->host_bytes));
  }
  for (const std::uint32_t model : problem.wanted) {
    if (model >= problem.models.size()) bad(fmt::format("there is no model {}", model));
  }
  if (!std::ranges::is_sorted(problem.arrivals, {}, &Arrival::time_s)) bad("requests are not in order of time");
  for (const Arrival& arrival : problem.arrivals) {
    if (arrival.model >= problem.models.size()) bad(fmt::format("there is no model {}", arrival.model));
  }
  return problem;
}

}  // namespace

std::vector<int> replicas_by_model(const SearchProblem& problem, const ModelPlacement& placement) {
  std::vector<int> replicas(problem.models.size());
  for (const PlacedGroup& placed : placement) {
    for (const std::uint32_t model : placed.models) ++replicas[model];
  }
  return replicas;
}

SimulatorOptions simulator_options(const SearchProblem& problem) {
  SimulatorOptions options{.stage_penalty = problem.stage_penalty, .constant_s = problem.constant_s, .swap = {}};
  if (const auto& swapping = problem.memory.swapping) {
    options.swap = {.device_bytes = problem.memory.device_bytes,
                    .page_bytes = swapping->page_bytes,
                    .link_bytes_per_s = swapping->link_bytes_per_s};
  }
  return options;
}

double score_of(Objective objective, const SimulationResult& result, std::size_t replicas) {
  switch (objective) {
    case Objective::kAttainment:
      return result.attainment() - result.mean_latency_s() / 1e4 + static_cast<double>(replicas) / 1e6;
    case Objective::kMeanLatency:
      return -result.mean_latency_s() - kUnserved * (1 - result.attainment());
    case Objective::kMakespan:
      return -result.makespan_s - result.mean_latency_s() / 1e4 - kUnserved * (1 - result.attainment());
  }
  return 0;
}

PlacementEvaluator::PlacementEvaluator(SearchProblem problem, SearchWatch watch)
    : problem_(checked(std::move(problem))),
      watch_(std::move(watch)),
      wanted_(problem_.wanted),
      siblings_(siblings_of(problem_.models)),
      slo_s_(problem_.slo_s),
      simulator_(problem_.models, simulator_options(problem_)) {
  if (wanted_.empty()) {
    wanted_.resize(problem_.models.size());
    std::iota(wanted_.begin(), wanted_.end(), 0u);
  }
  if (problem_.complete) {
    std::ranges::copy_if(wanted_, std::back_inserter(placeable_),
                         [this](std::uint32_t model) { return !shapes_with_room(problem_, model).empty(); });
  }
  if (problem_.objective != Objective::kAttainment) std::ranges::fill(slo_s_, std::numeric_limits<float>::infinity());
}

bool PlacementEvaluator::has_siblings() const {
  return std::ranges::any_of(siblings_, [](const auto& siblings) { return !siblings.empty(); });
}

SimulationResult PlacementEvaluator::simulate(const ModelPlacement& placement, std::span<const Arrival> arrivals,
                                              std::vector<RequestOutcome>* outcomes) {
  ++simulations_;
  return simulator_.run(placement, arrivals, slo_s_, outcomes);
}

// Models without a group, and groups without a model.
std::size_t PlacementEvaluator::incomplete(const ModelPlacement& placement) const {
  const auto replicas = replicas_by_model(problem_, placement);
  const auto absent = std::ranges::count_if(wanted_, [&](std::uint32_t model) { return replicas[model] == 0; });
  const auto idle = std::ranges::count_if(placement, [](const PlacedGroup& group) { return group.models.empty(); });
  return static_cast<std::size_t>(absent + idle);
}

bool PlacementEvaluator::lacks_models(const ModelPlacement& placement) const {
  const auto replicas = replicas_by_model(problem_, placement);
  return std::ranges::any_of(placeable_, [&replicas](std::uint32_t model) { return replicas[model] == 0; });
}

ScoredPlacement PlacementEvaluator::evaluate(ModelPlacement placement) {
  ScoredPlacement scored{.placement = std::move(placement), .score = 0, .result = {}};
  scored.result = simulate(scored.placement, problem_.arrivals);
  // A replica in host memory is worth nothing by itself.
  const std::size_t replicas = problem_.memory.swapping ? 0 : replicas_of(scored.placement);
  scored.score = score_of(problem_.objective, scored.result, replicas);
  if (problem_.complete) scored.score -= kIncomplete * static_cast<double>(incomplete(scored.placement));
  remember(scored);
  return scored;
}

// A worse one of its division is forgotten, and so is the worst division of too many.
void PlacementEvaluator::remember(const ScoredPlacement& scored) {
  const auto worst = std::ranges::min_element(divisions_, {}, [](const auto& entry) { return entry.second.score; });
  const bool full = divisions_.size() == kDivisionsKept;
  if (full && !(scored.score > worst->second.score)) return;
  std::vector<GroupShape> shapes;
  for (const PlacedGroup& group : scored.placement) shapes.push_back(group.shape);
  std::ranges::sort(shapes);
  const auto found = divisions_.find(shapes);
  if (found != divisions_.end()) {
    if (scored.score > found->second.score) found->second = scored;
    return;
  }
  if (full) divisions_.erase(worst);
  divisions_.emplace(std::move(shapes), scored);
}

std::vector<ScoredPlacement> PlacementEvaluator::best_divisions(std::size_t n) const {
  std::vector<ScoredPlacement> best;
  for (const auto& [shapes, scored] : divisions_) best.push_back(scored);
  std::ranges::stable_sort(best, std::ranges::greater{}, &ScoredPlacement::score);
  best.resize(std::min(best.size(), n));
  return best;
}

}  // namespace computron
