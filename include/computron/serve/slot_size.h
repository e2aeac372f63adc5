// The size of adapter slots: small frames, for the pages of adapters (ShardLayout::slot_bytes).
#pragma once

#include <cstddef>
#include <functional>

#include "computron/model/shard_layout.h"

namespace computron {

// Slots of a size that adapters take, and what lies in them.
struct SlotUse {
  std::size_t slots = 0, used_bytes = 0;
  bool fits = true;  // no block of rows is larger than a slot
  SlotUse& operator+=(const SlotUse& other);
};

// Of the adapter of a shard, whose types are as the device keeps them.
SlotUse slot_use(const ShardPlan& plan, const WeightFormat& format, const WeightTypes& types, std::size_t page_bytes,
                 std::size_t slot_bytes);

// The largest of a page's half, quarter and so on (a multiple of 64 bytes, kSmallestSlot at least) whose slots are
// together at most 1.25 times what lies in them, or else that with the least of them. 0: none, where there are no
// adapters or whole pages hold them as well. `use`: of all shards of a job in slots of a size.
inline constexpr std::size_t kSmallestSlot = 4096;
std::size_t default_slot_bytes(std::size_t page_bytes, const std::function<SlotUse(std::size_t slot_bytes)>& use);

}  // namespace computron
