// Which waiting requests an idle group should take from another one that has too many.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "computron/dispatch/serving_group.h"

namespace computron {

struct Theft {
  std::size_t from = 0;      // a group
  ModelId model = 0;         // the job's number
  std::size_t requests = 0;  // at most, of those that the thief can serve
};

// What `thief`, of which no request waits, should take from the one of `victims` that has most work and shares a model
// with it: half of the requests for that model that no step has had, or as many as both then end at one time. Nothing
// where they would not save more time than the thief's swap of the model takes.
std::optional<Theft> worth_stealing(std::span<const ServingGroup> groups, std::size_t thief,
                                    std::span<const std::size_t> victims);

}  // namespace computron
