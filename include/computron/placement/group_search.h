// Which groups there are: AlpaServe's enumeration of equal groups, its buckets of models of like latency, and what our
// own search adds to them.
#pragma once

#include <functional>
#include <vector>

#include "computron/placement/placement_evaluator.h"

namespace computron {

// Fills given groups.
using ModelSearch = std::function<ScoredPlacement(PlacementEvaluator&, const std::vector<GroupShape>&)>;

// As many equal groups as there is room for, of 1, 2, 4, ... ranks (of more than 8: multiples of 8) and each tp up to 4
// and pp up to 8; ranks that are left over become pipelines of powers of two, up to 8.
std::vector<std::vector<GroupShape>> equal_groups(int ranks);

// Every division into groups of 1, 2, 4, 8 ranks with such tp and pp: 9 of 4 ranks, 42 of 8, very many of more.
std::vector<std::vector<GroupShape>> all_groups(int ranks);

// AlpaServe's mp-search: each of equal_groups() that some wanted model has a profile for, filled; the best.
ScoredPlacement search_groups(PlacementEvaluator& evaluator, const ModelSearch& fill);

// Models whose latencies are alike: each joins the first bucket whose first model's latency differs by less than 38 %.
// In the order of `models`.
std::vector<std::vector<std::uint32_t>> latency_buckets(const std::vector<ModelProfile>& profiles,
                                                        const std::vector<std::uint32_t>& models);

// Ways to divide `ranks` ranks among as many buckets as `work` has entries, each with at least one rank: parts that
// leave whole nodes of 8 ranks. Where there are 100 or more, those whose shares are like the shares of work, 20,000 at
// most. The most alike first.
std::vector<std::vector<int>> bucket_splits(int ranks, const std::vector<double>& work);

// AlpaServe (mp-search-sep): buckets with ranks of their own, each searched by search_groups(), where that is better
// than search_groups() of all models together.
ScoredPlacement search_buckets(PlacementEvaluator& evaluator, const ModelSearch& fill);

// Our own: as search_buckets(), with groups of every shape that a model has a profile for, and with buckets whose
// models have one of them in common, so that none is left out for want of it; then the result and the best
// of the other groups improved. Groups are filled by fast greedy. Where models and ranks are few, they are
// all_groups(), too, and filled by a beam search as well. Where all models have a shape in common it is never worse
// than search_buckets() with fast greedy on the problem's own requests. Ends with the best so far when the watch says
// so; if the placement is to be complete, not before it has tried to place every model. Error{kUsage} where no group
// can serve any model.
ScoredPlacement search_placement(PlacementEvaluator& evaluator);

// AlpaServe's Clockwork++: for each window of `window_s` of the requests a selective replication that knows them in
// advance and replaces the one before at no cost, with nothing left over from the window before. No real system can do
// this: a bound for swapping whole models. The problem's own requests are those that are served.
SimulationResult clockwork(const SearchProblem& problem, double window_s);

}  // namespace computron
