// A cost model that begins with what a profile says, instead of a formula.
#pragma once

#include <string>
#include <vector>

#include "computron/placement/profile.h"
#include "computron/sched/cost_model.h"

namespace computron {

// Tells `costs`, of a group of the profile's shape, how long the passes of `model` take: those of the profile, between
// which it interpolates, or stage_s for every pass, whatever its rows, where the profile has none. Before any pass has
// been observed: then it predicts the profile's own passes to the last bit, but for several within one power of two of
// rows, of which it knows the mean.
void seed_costs(CostModel& costs, ModelId model, const ShapeProfile& profile);

// Why `profile` says nothing of passes of a model that is cut so; empty if it does. It has passes, and the model's
// stages have the bytes that it says, within 5 % (a person may have rounded them).
std::string why_unfit(const ShapeProfile& profile, const std::vector<const ShardLayout*>& stages);

}  // namespace computron
