// Which models go into which of given groups (AlpaServe, section 4.2: algorithm 1 and its baselines).
#pragma once

#include <vector>

#include "computron/placement/placement_evaluator.h"

namespace computron {

// AlpaServe's fast greedy. One simulation a replica: the model of which most requests are unserved goes into the group
// that works least, until nothing fits. The best of the placements on the way.
ScoredPlacement fast_greedy(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups);

// The same, but siblings (siblings_of()) come with the first of them, into its group, as far as they fit.
ScoredPlacement greedy_by_family(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups);

// AlpaServe's algorithm 1: of all ways to add a replica to one of the `width` best placements the `width` best are
// kept. One simulation a way; the best placement of all.
ScoredPlacement beam_search(PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups, int width);

// Wanted models in turn into groups in turn, wherever they fit, until none does.
ModelPlacement round_robin(const PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups);

// Group g gets the wanted models g, g + 1, ..., as many as fit (AlpaServe's sr-uniform).
ModelPlacement uniform_replication(const PlacementEvaluator& evaluator, const std::vector<GroupShape>& groups);

// Selective replication: fast greedy with a group a rank, as in Clipper's and Clockwork's placements.
ScoredPlacement selective_replication(PlacementEvaluator& evaluator);

// Takes the best of many small changes, while there is a better one: a model that suffers is added to a group that
// works little, in place of models there if need be; siblings in two groups come together in one of them; a group gets
// another shape or is divided; two groups become one.
ScoredPlacement improve(PlacementEvaluator& evaluator, ScoredPlacement start);

}  // namespace computron
