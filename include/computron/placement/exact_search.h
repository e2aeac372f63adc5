// The best placement of batches that are all there from the start, by branch and bound: what a search may be held
// against where models and ranks are few.
#pragma once

#include <cstdint>

#include "computron/placement/placement_evaluator.h"

namespace computron {

struct ExactAnswer {
  ScoredPlacement best;
  bool proven = false;           // that none has a shorter makespan; false: the watch ended the search before
  std::uint64_t placements = 0;  // that were simulated; the others cannot be better
};

// The placement whose simulated makespan is least, of all in which every wanted model that there is room for is in a
// group, and every group has a model: any groups over at most the problem's ranks, of the shapes that models have
// profiles for, and any models in them, as far as memory and the rule for replicas allow. The requests of a model are
// divided among its replicas as the simulator divides them: each goes to the group that is free first. Which of several
// that are free at the same time depends on their order; each placement counts in job_order().
//
// It begins with what list scheduling finds (list_schedule.h), and leaves out what cannot be better: the work of each
// set of models must be done by the groups that have one of them (src/placement/makespan_bound.h).
// Error{kUsage} where the objective is not the makespan, a request is not there from the start, or there are more
// placements than can be looked at within minutes. ConfigError where the models have no room together.
ExactAnswer search_exactly(PlacementEvaluator& evaluator);

// How many placements there are, in job_order(), were there room for all models everywhere.
double possible_placements(const SearchProblem& problem);

// Larger groups first, then by their models and shapes; the models of a group in the order of the problem.
ModelPlacement job_order(ModelPlacement placement);

}  // namespace computron
