#include "computron/serve/slot_size.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace computron {

SlotUse& SlotUse::operator+=(const SlotUse& other) {
  slots += other.slots;
  used_bytes += other.used_bytes;
  fits &= other.fits;
  return *this;
}

SlotUse slot_use(const ShardPlan& plan, const WeightFormat& format, const WeightTypes& types, std::size_t page_bytes,
                 std::size_t slot_bytes) {
  ShardPlan adapter = plan;
  std::erase_if(adapter.tensors, [](const ShardTensor& t) { return !t.of_adapter(); });
  if (ShardLayout::largest_block_bytes(std::move(adapter), format, types) > slot_bytes) return {.fits = false};
  const ShardLayout layout = ShardLayout::make(plan, format, types, page_bytes, slot_bytes);
  SlotUse use{.slots = layout.adapter_pages.size()};
  for (const PageId page : layout.adapter_pages) use.used_bytes += layout.used_bytes[page];
  return use;
}

std::size_t default_slot_bytes(std::size_t page_bytes, const std::function<SlotUse(std::size_t)>& use) {
  constexpr std::size_t kUnit = 64;
  std::size_t best = 0, best_bytes = 0;  // 0: pages as all others
  for (std::size_t size = page_bytes; size >= kSmallestSlot; size = size / 2 / kUnit * kUnit) {
    const SlotUse taken = use(size);
    if (!taken.fits) break;
    const std::size_t bytes = taken.slots * size;
    if (size == page_bytes || bytes < best_bytes) std::tie(best, best_bytes) = std::tuple(size, bytes);
    if (4 * bytes <= 5 * taken.used_bytes) break;
  }
  return best < page_bytes ? best : 0;
}

}  // namespace computron
