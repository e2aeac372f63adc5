// A cost model that begins with what a profile says, instead of a formula.
#pragma once

#include "computron/placement/profile.h"
#include "computron/sched/cost_model.h"

namespace computron {

// Tells `costs`, of a group of the profile's shape, how long the passes of `model` take: those of the profile, between
// which it interpolates, or stage_s for every pass, whatever its rows, where the profile has none. Before any pass has
// been observed: then it predicts the profile's own passes to the last bit, but for several within one power of two of
// rows, of which it knows the mean.
void seed_costs(CostModel& costs, ModelId model, const ShapeProfile& profile);

}  // namespace computron
