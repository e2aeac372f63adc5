// Placements that list scheduling makes of batches that are all there from the start.
#pragma once

#include <vector>

#include "computron/placement/placement_evaluator.h"

namespace computron {

// Of groups of these shapes: each model where some of its requests ran, or where most of them did, when its requests
// went one after the other as one task, and in as many tasks as there are groups. Groups that nothing ran on are left
// out. Memory and the rule for replicas are not looked at: a placement need not fit. Empty where no group can serve
// one of the models.
std::vector<ModelPlacement> listed_placements(const SearchProblem& problem, const std::vector<std::uint32_t>& models,
                                              const std::vector<GroupShape>& shapes);

}  // namespace computron
