#include "computron/runtime/offload_area.h"

#include <new>

namespace computron {

OffloadArea::OffloadArea(Device& device, int slots, std::size_t slot_bytes) : slots_(slots), slot_bytes_(slot_bytes) {
  if (slots == 0) return;
  buffer_ = device.allocate_host(static_cast<std::size_t>(slots) * slot_bytes, "offloaded caches");
  if (!buffer_->populate(0, buffer_->bytes())) throw std::bad_alloc();
}

}  // namespace computron
