// How a pool is divided: adapter slots, in which the pages of adapters lie, take some of its frames.
#pragma once

#include <cstdint>
#include <vector>

#include "computron/sched/scheduler_state.h"

namespace computron {

// What the models of a group would have, on the stage that has most of it.
struct SlotDemand {
  std::int64_t all = 0;     // slots, of all adapters
  std::int64_t least = 0;   // of pinned models, and of the largest adapter of the others: what a pass needs at once
  std::int64_t frames = 0;  // that are not to become slots: of the model with most pages in frames
};
SlotDemand slot_demand(const std::vector<ModelShape>& models);

struct DividedPool {
  int frames = 0;
  int adapter_slots = 0;
};
// Slots for all adapters, but in no more than half of the frames that are to spare, unless one adapter beside the
// pinned ones takes more. `frames` is what is left then, below 1 where there are too few. `slot_bytes` 0: no slots.
// Numbers that are too large for an int are the largest.
DividedPool divide_pool(int frames, const SlotDemand& demand, std::int64_t page_bytes, std::int64_t slot_bytes);

}  // namespace computron
