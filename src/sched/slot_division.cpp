#include "computron/sched/slot_division.h"

#include <algorithm>
#include <limits>

#include "computron/base/types.h"

namespace computron {

SlotDemand slot_demand(const std::vector<ModelShape>& models) {
  SlotDemand most;
  for (std::size_t stage = 0; stage < models.front().layouts.size(); ++stage) {
    std::int64_t all = 0, pinned = 0, largest = 0;
    for (const ModelShape& model : models) {
      const std::int64_t slots = model.layouts[stage]->pages(FrameKind::kSlot);
      all += slots;
      (model.pinned ? pinned : largest) = model.pinned ? pinned + slots : std::max(largest, slots);
      most.frames = std::max<std::int64_t>(most.frames, model.layouts[stage]->pages(FrameKind::kWhole));
    }
    most.all = std::max(most.all, all);
    most.least = std::max(most.least, pinned + largest);
  }
  return most;
}

DividedPool divide_pool(int frames, const SlotDemand& demand, std::int64_t page_bytes, std::int64_t slot_bytes) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max(), kMostBytes = std::numeric_limits<std::int64_t>::max();
  if (slot_bytes == 0 || demand.all == 0) return {frames, 0};
  const std::int64_t spare = std::max<std::int64_t>(frames - demand.frames, 0) / 2;
  const std::int64_t slots = std::min(demand.all, std::max(demand.least, spare * page_bytes / slot_bytes));
  const bool countable = slots <= (kMostBytes - page_bytes) / slot_bytes;
  const std::int64_t pages = countable ? ceil_div(slots * slot_bytes, page_bytes) : kMost;
  return {static_cast<int>(std::max(frames - pages, -kMost)), static_cast<int>(std::min(slots, kMost))};
}

}  // namespace computron
