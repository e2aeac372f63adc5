// Host memory that caches are offloaded to while frames serve something else: slots as large as a frame.
#pragma once

#include <memory>

#include "computron/device/device.h"
#include "computron/runtime/step.h"

namespace computron {

class OffloadArea {
 public:
  // Error{kSystem} without memory. The memory is touched here, so that no offload waits for it to appear.
  OffloadArea(Device& device, int slots, std::size_t slot_bytes);

  int slots() const { return slots_; }
  std::byte* slot(HostSlot s) const { return buffer_->data() + s * slot_bytes_; }

 private:
  int slots_;
  std::size_t slot_bytes_;
  std::unique_ptr<HostBuffer> buffer_;  // null without slots
};

}  // namespace computron
