#include "computron/placement/group_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "computron/base/error.h"
#include "computron/placement/model_search.h"

namespace computron {
namespace {

constexpr int kMostPp = 8, kMostTp = 4, kNode = 8;
constexpr double kAlike = 0.38;
constexpr int kFewRanks = 8;      // up to which all_groups() are few
constexpr std::size_t kFew = 24;  // models · ranks up to which a wide beam is quick
constexpr int kWideBeam = 12;
constexpr std::size_t kFewSplits = 100, kFewSplitsSwapping = 4;

// Of ranks that no equal group takes, the largest first.
std::vector<GroupShape> left_over_groups(int ranks) {
  std::vector<GroupShape> groups;
  while (ranks > 0) {
    const int pp = std::min(kMostPp, static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks))));
    groups.push_back({.tp = 1, .pp = pp});
    ranks -= pp;
  }
  return groups;
}

// tp x pp of so many ranks, in AlpaServe's limits.
std::vector<GroupShape> shapes_of(int ranks) {
  std::vector<GroupShape> shapes;
  for (int tp = 1; tp <= std::min(kMostTp, ranks); tp *= 2) {
    if (ranks / tp <= kMostPp) shapes.push_back({.tp = tp, .pp = ranks / tp});
  }
  return shapes;
}

// Every division of `ranks` into groups of 1, 2, 4, ... ranks and of every shape, behind `begun` in order of shapes.
void add_divisions(int ranks, std::vector<GroupShape>& begun, std::vector<std::vector<GroupShape>>& divisions) {
  if (ranks == 0) return divisions.push_back(begun);
  for (int size = 1; size <= ranks; size *= 2) {
    for (const GroupShape& shape : shapes_of(size)) {
      if (!begun.empty() && shape < begun.back()) continue;
      begun.push_back(shape);
      add_divisions(ranks - size, begun, divisions);
      begun.pop_back();
    }
  }
}

bool serves_somebody(const PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  return std::ranges::any_of(groups, [&](const GroupShape& shape) {
    return std::ranges::any_of(evaluator.wanted(), [&](std::uint32_t model) {
      return evaluator.problem().models[model].find(shape) != nullptr;
    });
  });
}

// Of a request alone, on the fewest ranks for which there is a profile.
double alone_s(const ModelProfile& model) {
  const auto smallest = std::ranges::min_element(
      model.shapes, {}, [](const auto& entry) { return std::pair(entry.first.ranks(), entry.second.latency_s()); });
  return smallest == model.shapes.end() ? 0 : static_cast<double>(smallest->second.latency_s());
}

bool leaves_whole_nodes(int part, int ranks) {
  return ranks % kNode == 0 || part <= ranks % kNode || (ranks - part) % kNode == 0;
}

void add_splits(int ranks, std::size_t parts, std::vector<int>& begun, std::vector<std::vector<int>>& splits) {
  if (parts == 1) {
    if (ranks < 1) return;
    splits.push_back(begun);
    splits.back().push_back(ranks);
    return;
  }
  for (int part = 1; part < ranks; ++part) {
    if (!leaves_whole_nodes(part, ranks)) continue;
    begun.push_back(part);
    add_splits(ranks - part, parts - 1, begun, splits);
    begun.pop_back();
  }
}

// Largest difference between shares of ranks and of work.
double difference(const std::vector<int>& split, const std::vector<double>& work) {
  double ranks = 0, sum = 0, most = 0;
  for (const int part : split) ranks += part;
  for (const double each : work) sum += each;
  for (std::size_t i = 0; i < split.size(); ++i) most = std::max(most, std::abs(split[i] / ranks - work[i] / sum));
  return most;
}

SearchProblem part_of(const SearchProblem& problem, const std::vector<std::uint32_t>& models, int first_rank,
                      int ranks) {
  SearchProblem part = problem;
  part.wanted = models;
  part.first_rank = first_rank;
  part.ranks = ranks;
  std::erase_if(part.arrivals,
                [&models](const Arrival& a) { return std::ranges::find(models, a.model) == models.end(); });
  return part;
}

// Each of `candidates` that somebody can be served by, filled; the best first. At least one, unless it throws.
std::vector<ScoredPlacement> filled_groups(PlacementEvaluator& evaluator, const ModelSearch& fill,
                                           const std::vector<std::vector<GroupShape>>& candidates) {
  std::vector<ScoredPlacement> filled;
  for (const auto& groups : candidates) {
    if (!serves_somebody(evaluator, groups)) continue;
    if (!filled.empty() && evaluator.stopped()) break;
    filled.push_back(fill(evaluator, groups));
  }
  if (filled.empty()) throw Error(ExitCode::kUsage, "placement: no model has a profile that so many ranks can serve");
  std::ranges::stable_sort(filled, std::ranges::greater{}, &ScoredPlacement::score);
  return filled;
}

// Placements of one bucket, by first rank and ranks. Without swapping the first rank makes no difference.
class BucketSearch {
 public:
  BucketSearch(PlacementEvaluator& whole, std::vector<std::uint32_t> models, const ModelSearch& fill)
      : whole_(whole), models_(std::move(models)), fill_(fill) {}

  // Nothing if the search was stopped.
  const ModelPlacement* find(int first_rank, int ranks) {
    const std::pair key(whole_.problem().memory.swapping ? first_rank % ranks_per_node() : 0, ranks);
    if (const auto known = found_.find(key); known != found_.end()) return &known->second;
    if (whole_.stopped()) return nullptr;
    PlacementEvaluator own(part_of(whole_.problem(), models_, first_rank, ranks),
                           {.stop = whole_.watch().stop, .better = {}});
    return &(found_[key] = search_groups(own, fill_).placement);
  }

 private:
  int ranks_per_node() const { return whole_.problem().memory.swapping->ranks_per_node; }

  PlacementEvaluator& whole_;
  std::vector<std::uint32_t> models_;
  const ModelSearch& fill_;
  std::map<std::pair<int, int>, ModelPlacement> found_;
};

// Time that the requests of each bucket would take alone.
std::vector<double> work_of(const SearchProblem& problem, const std::vector<std::vector<std::uint32_t>>& buckets) {
  std::vector<double> by_model(problem.models.size()), work;
  for (const Arrival& arrival : problem.arrivals) by_model[arrival.model] += alone_s(problem.models[arrival.model]);
  for (const auto& bucket : buckets) {
    work.push_back(1e-9);
    for (const std::uint32_t model : bucket) work.back() += by_model[model];
  }
  return work;
}

std::optional<ModelPlacement> joined(std::vector<BucketSearch>& buckets, const std::vector<int>& split,
                                     int first_rank) {
  ModelPlacement placement;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const ModelPlacement* const own = buckets[b].find(first_rank, split[b]);
    if (own == nullptr) return std::nullopt;
    placement.insert(placement.end(), own->begin(), own->end());
    first_rank += split[b];
  }
  return placement;
}

ScoredPlacement beam_or_greedy(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups) {
  const ScoredPlacement beam = beam_search(evaluator, groups, kWideBeam), greedy = fast_greedy(evaluator, groups);
  return beam.score > greedy.score ? beam : greedy;
}

void report(const PlacementEvaluator& evaluator, const ScoredPlacement& better) {
  if (evaluator.watch().better) evaluator.watch().better(better);
}

// `best`, or a better one in which each bucket has ranks of its own.
ScoredPlacement with_buckets(PlacementEvaluator& evaluator, const ModelSearch& fill, ScoredPlacement best) {
  const SearchProblem& problem = evaluator.problem();
  const auto buckets = latency_buckets(problem.models, evaluator.wanted());
  if (buckets.size() < 2) return best;
  std::vector<BucketSearch> searches;
  for (const auto& bucket : buckets) searches.emplace_back(evaluator, bucket, fill);
  // A search with swapping takes longer: fewer of them.
  const std::size_t most = problem.memory.swapping ? kFewSplitsSwapping : std::numeric_limits<std::size_t>::max();
  auto splits = bucket_splits(problem.ranks, work_of(problem, buckets));
  splits.resize(std::min(splits.size(), most));
  for (const auto& split : splits) {
    auto placement = joined(searches, split, problem.first_rank);
    if (!placement) break;
    ScoredPlacement scored = evaluator.evaluate(std::move(*placement));
    if (!(scored.score > best.score)) continue;
    best = std::move(scored);
    report(evaluator, best);
  }
  return best;
}

}  // namespace

std::vector<std::vector<GroupShape>> all_groups(int ranks) {
  std::vector<std::vector<GroupShape>> divisions;
  std::vector<GroupShape> begun;
  add_divisions(ranks, begun, divisions);
  return divisions;
}

std::vector<std::vector<GroupShape>> equal_groups(int ranks) {
  std::vector<std::vector<GroupShape>> candidates;
  for (int size = 1; size <= ranks; size *= 2) {
    for (const GroupShape& shape : shapes_of(size)) {
      std::vector<GroupShape> groups(static_cast<std::size_t>(ranks / size), shape);
      for (const GroupShape& rest : left_over_groups(ranks % size)) groups.push_back(rest);
      candidates.push_back(std::move(groups));
    }
  }
  return candidates;
}

ScoredPlacement search_groups(PlacementEvaluator& evaluator, const ModelSearch& fill) {
  return filled_groups(evaluator, fill, equal_groups(evaluator.problem().ranks))[0];
}

std::vector<std::vector<std::uint32_t>> latency_buckets(const std::vector<ModelProfile>& profiles,
                                                        const std::vector<std::uint32_t>& models) {
  std::vector<std::vector<std::uint32_t>> buckets;
  for (const std::uint32_t model : models) {
    const double own = alone_s(profiles[model]);
    const auto found = std::ranges::find_if(buckets, [&](const auto& bucket) {
      const double first = alone_s(profiles[bucket[0]]);
      return std::abs(own - first) < kAlike * first;
    });
    if (found != buckets.end()) {
      found->push_back(model);
    } else {
      buckets.push_back({model});
    }
  }
  return buckets;
}

std::vector<std::vector<int>> bucket_splits(int ranks, const std::vector<double>& work) {
  std::vector<std::vector<int>> splits;
  std::vector<int> begun;
  add_splits(ranks, work.size(), begun, splits);
  for (const double most : {1.0, .5, .3, .2, .1}) {
    if (splits.size() < kFewSplits) break;
    std::vector<std::vector<int>> kept;
    std::ranges::copy_if(splits, std::back_inserter(kept),
                         [&](const auto& split) { return difference(split, work) <= most; });
    if (!kept.empty()) splits = std::move(kept);
  }
  std::ranges::stable_sort(splits, {}, [&work](const auto& split) { return difference(split, work); });
  return splits;
}

ScoredPlacement search_buckets(PlacementEvaluator& evaluator, const ModelSearch& fill) {
  return with_buckets(evaluator, fill, search_groups(evaluator, fill));
}

ScoredPlacement search_placement(PlacementEvaluator& evaluator) {
  const SearchProblem& problem = evaluator.problem();
  const std::size_t most = problem.memory.swapping ? 2 : 5;
  const bool small =
      problem.ranks <= kFewRanks && evaluator.wanted().size() * static_cast<std::size_t>(problem.ranks) <= kFew;
  const ModelSearch fill = small ? ModelSearch(beam_or_greedy) : ModelSearch(fast_greedy);
  auto starts = filled_groups(evaluator, fill, small ? all_groups(problem.ranks) : equal_groups(problem.ranks));
  report(evaluator, starts[0]);
  ScoredPlacement best = with_buckets(evaluator, fill, starts[0]);
  starts.insert(starts.begin(), best);
  starts.resize(std::min(starts.size(), most));
  for (ScoredPlacement& start : starts) {
    if (evaluator.stopped()) break;
    ScoredPlacement improved = improve(evaluator, std::move(start));
    if (!(improved.score > best.score)) continue;
    best = std::move(improved);
    report(evaluator, best);
  }
  return best;
}

SimulationResult clockwork(const SearchProblem& problem, double window_s) {
  if (!(window_s > 0)) throw Error(ExitCode::kUsage, "placement: windows must be longer than 0 s");
  SimulationResult all;
  for (auto begin = problem.arrivals.begin(); begin != problem.arrivals.end();) {
    const double until = (std::floor(begin->time_s / window_s) + 1) * window_s;
    const auto end =
        std::find_if(begin, problem.arrivals.end(), [until](const Arrival& a) { return a.time_s >= until; });
    SearchProblem window = problem;
    window.arrivals.assign(begin, end);
    PlacementEvaluator evaluator(std::move(window));
    all.merge(selective_replication(evaluator).result);
    begin = end;
  }
  return all;
}

}  // namespace computron
