#include "computron/placement/group_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "computron/base/error.h"
#include "computron/placement/model_search.h"
#include "src/placement/memory_use.h"

namespace computron {
namespace {

constexpr int kMostPp = 8, kMostTp = 4, kNode = 8;
constexpr double kAlike = 0.38;
constexpr int kFewRanks = 8;      // up to which all_groups() are few
constexpr std::size_t kFew = 24;  // models · ranks up to which a wide beam is quick
constexpr int kWideBeam = 12;
constexpr std::size_t kFewRequests = 1000;  // of which simulations are so quick that the beam may be wider still
constexpr int kWidestBeam = 40;
constexpr std::size_t kFewSplits = 100, kFewSplitsSwapping = 4;
constexpr int kSplitsAfterStop = 4;          // looked at where no model may be left out
constexpr std::size_t kMostSplits = 20'000;  // that are looked at: with many buckets there are far more

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

// As many of a shape as there is room for.
std::vector<GroupShape> groups_of(const GroupShape& shape, int ranks) {
  std::vector<GroupShape> groups(static_cast<std::size_t>(ranks / shape.ranks()), shape);
  for (const GroupShape& rest : left_over_groups(ranks % shape.ranks())) groups.push_back(rest);
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

bool is_alpaserves(const GroupShape& shape) {
  const int ranks = shape.ranks();
  return std::has_single_bit(static_cast<unsigned>(ranks)) && std::ranges::count(shapes_of(ranks), shape) > 0;
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

bool leaves_whole_nodes(int part, int ranks) {
  return ranks % kNode == 0 || part <= ranks % kNode || (ranks - part) % kNode == 0;
}

// The splits of `ranks` ranks whose shares differ from `shares`, those of the work, by at most `most`. A part is tried
// only if the others can still take what it leaves, and what they turn out not to divide in whole nodes is not tried
// again: so the tries are few even where the splits are.
class Splits {
 public:
  Splits(int ranks, const std::vector<double>& shares, double most) {
    for (const double share : shares) ranges_.push_back(range_of(share, ranks, most));
    behind_.resize(shares.size());
    for (std::size_t at = shares.size() - 1; at > 0; --at) {
      behind_[at - 1] = {behind_[at].least + ranges_[at].least, behind_[at].most + ranges_[at].most};
    }
    add(ranks);
  }
  // At most kMostSplits: whether there are more is not known if there are so many.
  const std::vector<std::vector<int>>& all() const { return splits_; }

 private:
  void add(int left) {
    const std::size_t at = begun_.size();
    if (splits_.size() == kMostSplits || dead_ends_.contains({at, left})) return;
    const std::size_t before = splits_.size();
    const int first = std::max(ranges_[at].least, left - behind_[at].most);
    const int last = std::min(ranges_[at].most, left - behind_[at].least);
    for (int part = first; part <= last; ++part) {
      const bool is_last = at + 1 == ranges_.size();
      if (!is_last && !leaves_whole_nodes(part, left)) continue;
      begun_.push_back(part);
      is_last ? splits_.push_back(begun_) : add(left - part);
      begun_.pop_back();
    }
    if (splits_.size() == before) dead_ends_.insert({at, left});
  }

  // Ranks of a part, or of several together.
  struct Range {
    int least = 0, most = 0;
  };
  // Those whose share is alike; none: `most` is less than `least`.
  static Range range_of(double share, int ranks, double most) {
    const auto is_alike = [=](int part) { return std::abs(static_cast<double>(part) / ranks - share) <= most; };
    Range range{1, ranks};
    while (range.least <= ranks && !is_alike(range.least)) ++range.least;
    while (range.most >= range.least && !is_alike(range.most)) --range.most;
    return range;
  }

  std::vector<Range> ranges_, behind_;  // [part]: its own, and that of all behind it
  std::vector<int> begun_;
  std::set<std::pair<std::size_t, int>> dead_ends_;  // part and ranks that are left for it and those behind it
  std::vector<std::vector<int>> splits_;
};

// Largest difference between shares of ranks and of work.
double difference(const std::vector<int>& split, int ranks, const std::vector<double>& shares) {
  double most = 0;
  for (std::size_t i = 0; i < split.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(split[i]) / ranks - shares[i]));
  }
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

using Divisions = std::vector<std::vector<GroupShape>>;
using Buckets = std::vector<std::vector<std::uint32_t>>;

// What a search tries: divisions of a problem's ranks, and buckets of models with ranks of their own.
struct Candidates {
  Divisions (*groups)(const PlacementEvaluator&);
  Buckets (*buckets)(const PlacementEvaluator&);
};

bool are_alike(const ModelProfile& first, const ModelProfile& other) {
  return std::abs(other.alone_s() - first.alone_s()) < kAlike * first.alone_s();
}

Divisions alpaserves_groups(const PlacementEvaluator& evaluator) { return equal_groups(evaluator.problem().ranks); }

// And equal groups of each other shape that a model has a profile for: tp 8, pp 3.
Divisions profiled_groups(const PlacementEvaluator& evaluator) {
  const int ranks = evaluator.problem().ranks;
  std::set<GroupShape> others;
  for (const std::uint32_t model : evaluator.wanted()) {
    for (const auto& [shape, profile] : evaluator.problem().models[model].shapes) {
      if (shape.ranks() <= ranks && !is_alpaserves(shape)) others.insert(shape);
    }
  }
  Divisions divisions = equal_groups(ranks);
  for (const GroupShape& shape : others) divisions.push_back(groups_of(shape, ranks));
  return divisions;
}

// Each of `candidates` that somebody can be served by, filled; the best first. A stop is heard once one has all models
// that there is room for.
std::vector<ScoredPlacement> filled_groups(PlacementEvaluator& evaluator, const ModelSearch& fill,
                                           const Divisions& candidates) {
  std::vector<ScoredPlacement> filled;
  for (const auto& groups : candidates) {
    if (!serves_somebody(evaluator, groups)) continue;
    const auto is_enough = [&](const ScoredPlacement& one) { return !evaluator.lacks_models(one.placement); };
    if (evaluator.stopped() && std::ranges::any_of(filled, is_enough)) break;
    filled.push_back(fill(evaluator, groups));
  }
  std::ranges::stable_sort(filled, std::ranges::greater{}, &ScoredPlacement::score);
  return filled;
}

// At least one.
std::vector<ScoredPlacement> some_filled_groups(PlacementEvaluator& evaluator, const ModelSearch& fill,
                                                const Divisions& candidates) {
  auto filled = filled_groups(evaluator, fill, candidates);
  if (filled.empty()) throw Error(ExitCode::kUsage, "placement: no model has a profile that so many ranks can serve");
  return filled;
}

// Placements of one bucket, by first rank and ranks. Without swapping the first rank makes no difference.
class BucketSearch {
 public:
  BucketSearch(PlacementEvaluator& whole, std::vector<std::uint32_t> models, const ModelSearch& fill,
               Candidates candidates)
      : whole_(whole), models_(std::move(models)), fill_(fill), candidates_(candidates) {}

  // Null if so many ranks can serve none of the models.
  const ModelPlacement* find(int first_rank, int ranks) {
    const std::pair key(whole_.problem().memory.swapping ? first_rank % ranks_per_node() : 0, ranks);
    if (!found_.contains(key)) {
      PlacementEvaluator own(part_of(whole_.problem(), models_, first_rank, ranks),
                             {.stop = whole_.watch().stop, .better = {}});
      auto filled = filled_groups(own, fill_, candidates_.groups(own));
      found_[key] = filled.empty() ? ModelPlacement() : std::move(filled[0].placement);
    }
    return found_[key].empty() ? nullptr : &found_[key];
  }

 private:
  int ranks_per_node() const { return whole_.problem().memory.swapping->ranks_per_node; }

  PlacementEvaluator& whole_;
  std::vector<std::uint32_t> models_;
  const ModelSearch& fill_;
  Candidates candidates_;
  std::map<std::pair<int, int>, ModelPlacement> found_;  // without groups: none
};

Buckets alpaserves_buckets(const PlacementEvaluator& evaluator) {
  return latency_buckets(evaluator.problem().models, evaluator.wanted());
}

// Of the models that there is room for. All of a bucket have a shape in common, so that equal groups can serve them.
Buckets servable_buckets(const PlacementEvaluator& evaluator) {
  const SearchProblem& problem = evaluator.problem();
  Buckets buckets;
  std::vector<std::set<GroupShape>> common;  // [bucket]
  for (const std::uint32_t model : evaluator.wanted()) {
    const std::set<GroupShape> own = shapes_with_room(problem, model);
    if (own.empty()) continue;
    std::size_t b = 0;
    for (std::set<GroupShape> shared; b < buckets.size(); ++b, shared.clear()) {
      if (!are_alike(problem.models[buckets[b][0]], problem.models[model])) continue;
      std::ranges::set_intersection(common[b], own, std::inserter(shared, shared.end()));
      if (shared.empty()) continue;
      common[b] = shared;
      break;
    }
    if (b == buckets.size()) {
      buckets.emplace_back();
      common.push_back(own);
    }
    buckets[b].push_back(model);
  }
  return buckets;
}

// Ranks without which some of the bucket's models would be left out, where none may be.
int needed_ranks(const SearchProblem& problem, const std::vector<std::uint32_t>& bucket) {
  int needed = 1;
  if (!problem.complete) return needed;
  for (const std::uint32_t model : bucket) {
    const auto shapes = shapes_with_room(problem, model);
    const auto smallest = std::ranges::min_element(shapes, {}, &GroupShape::ranks);
    if (smallest != shapes.end()) needed = std::max(needed, smallest->ranks());
  }
  return needed;
}

// Time that the requests of each bucket would take alone.
std::vector<double> work_of(const SearchProblem& problem, const Buckets& buckets) {
  std::vector<double> by_model(problem.models.size()), work;
  for (const Arrival& arrival : problem.arrivals) by_model[arrival.model] += problem.models[arrival.model].alone_s();
  for (const auto& bucket : buckets) {
    work.push_back(1e-9);
    for (const std::uint32_t model : bucket) work.back() += by_model[model];
  }
  return work;
}

// Splits of the ranks with as many for each bucket as it needs, most like the shares of work first.
std::vector<std::vector<int>> useful_splits(const SearchProblem& problem, const Buckets& buckets) {
  std::vector<double> work = work_of(problem, buckets);
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  std::vector<int> needed;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    needed.push_back(needed_ranks(problem, buckets[b]));
    if (needed[b] > 1) work[b] = std::max(work[b], sum * needed[b] / problem.ranks);
  }
  auto splits = bucket_splits(problem.ranks, work);
  std::erase_if(splits,
                [&needed](const auto& split) { return !std::ranges::equal(split, needed, std::greater_equal{}); });
  return splits;
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
  const int width = evaluator.problem().arrivals.size() <= kFewRequests ? kWidestBeam : kWideBeam;
  const ScoredPlacement beam = beam_search(evaluator, groups, width), greedy = fast_greedy(evaluator, groups);
  return beam.score > greedy.score ? beam : greedy;
}

// Where models have siblings: the better of a search that does not look at that, and of one that keeps them together.
ModelSearch with_families(const PlacementEvaluator& evaluator, ModelSearch fill) {
  if (!evaluator.has_siblings()) return fill;
  return [fill = std::move(fill)](PlacementEvaluator& own, const std::vector<GroupShape>& groups) {
    ScoredPlacement any = fill(own, groups), together = greedy_by_family(own, groups);
    return together.score > any.score ? together : any;
  };
}

void report(const PlacementEvaluator& evaluator, const ScoredPlacement& better) {
  if (evaluator.watch().better) evaluator.watch().better(better);
}

// `best`, or a better one in which each bucket has ranks of its own.
ScoredPlacement with_buckets(PlacementEvaluator& evaluator, const ModelSearch& fill, Candidates candidates,
                             ScoredPlacement best) {
  const SearchProblem& problem = evaluator.problem();
  const Buckets buckets = candidates.buckets(evaluator);
  if (buckets.size() < 2) return best;
  std::vector<BucketSearch> searches;
  for (const auto& bucket : buckets) searches.emplace_back(evaluator, bucket, fill, candidates);
  // A search with swapping takes longer: fewer of them.
  const std::size_t most = problem.memory.swapping ? kFewSplitsSwapping : std::numeric_limits<std::size_t>::max();
  auto splits = useful_splits(problem, buckets);
  splits.resize(std::min(splits.size(), most));
  int after_stop = 0;
  for (const auto& split : splits) {
    if (evaluator.stopped() && (!evaluator.lacks_models(best.placement) || ++after_stop > kSplitsAfterStop)) break;
    auto placement = joined(searches, split, problem.first_rank);
    if (!placement) continue;
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
      candidates.push_back(groups_of(shape, ranks));
    }
  }
  return candidates;
}

ScoredPlacement search_groups(PlacementEvaluator& evaluator, const ModelSearch& fill) {
  return some_filled_groups(evaluator, fill, alpaserves_groups(evaluator))[0];
}

std::vector<std::vector<std::uint32_t>> latency_buckets(const std::vector<ModelProfile>& profiles,
                                                        const std::vector<std::uint32_t>& models) {
  std::vector<std::vector<std::uint32_t>> buckets;
  for (const std::uint32_t model : models) {
    const auto found = std::ranges::find_if(
        buckets, [&](const auto& bucket) { return are_alike(profiles[bucket[0]], profiles[model]); });
    if (found != buckets.end()) {
      found->push_back(model);
    } else {
      buckets.push_back({model});
    }
  }
  return buckets;
}

std::vector<std::vector<int>> bucket_splits(int ranks, const std::vector<double>& work) {
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  std::vector<double> shares;
  for (const double each : work) shares.push_back(each / sum);
  std::vector<std::vector<int>> splits;
  // AlpaServe's differences, and smaller ones where even these leave more than can be looked at.
  for (const double most : {1.0, .5, .3, .2, .1, .05, .03, .02, .01}) {
    if (most < .1 && splits.size() < kMostSplits) break;
    auto alike = Splits(ranks, shares, most).all();
    if (!alike.empty()) splits = std::move(alike);
    if (splits.size() < kFewSplits) break;
  }
  std::ranges::stable_sort(splits, {}, [&](const auto& split) { return difference(split, ranks, shares); });
  return splits;
}

ScoredPlacement search_buckets(PlacementEvaluator& evaluator, const ModelSearch& fill) {
  return with_buckets(evaluator, fill, {alpaserves_groups, alpaserves_buckets}, search_groups(evaluator, fill));
}

ScoredPlacement search_placement(PlacementEvaluator& evaluator) {
  const SearchProblem& problem = evaluator.problem();
  const std::size_t most = problem.memory.swapping ? 2 : 5;
  const bool small =
      problem.ranks <= kFewRanks && evaluator.wanted().size() * static_cast<std::size_t>(problem.ranks) <= kFew;
  const ModelSearch fill = with_families(evaluator, small ? ModelSearch(beam_or_greedy) : ModelSearch(fast_greedy));
  Divisions candidates = profiled_groups(evaluator);
  if (small) {
    const Divisions equal = candidates;
    std::ranges::copy_if(all_groups(problem.ranks), std::back_inserter(candidates),
                         [&equal](const auto& groups) { return std::ranges::count(equal, groups) == 0; });
  }
  auto starts = some_filled_groups(evaluator, fill, candidates);
  report(evaluator, starts[0]);
  ScoredPlacement best = with_buckets(evaluator, fill, {profiled_groups, servable_buckets}, starts[0]);
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
    // Where windows are too short for a double to tell one's begin from its end: at least the first.
    const auto end =
        std::find_if(begin + 1, problem.arrivals.end(), [until](const Arrival& a) { return a.time_s >= until; });
    SearchProblem window = problem;
    window.arrivals.assign(begin, end);
    PlacementEvaluator evaluator(std::move(window));
    all.merge(selective_replication(evaluator).result);
    begin = end;
  }
  return all;
}

}  // namespace computron
