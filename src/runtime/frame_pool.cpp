#include "computron/runtime/frame_pool.h"

namespace computron {

FramePool::FramePool(Device& device, int frames, std::size_t frame_bytes, int slots, std::size_t slot_bytes)
    : frames_(frames),
      frame_bytes_(frame_bytes),
      slot_bytes_(slot_bytes),
      buffer_(
          device.allocate(static_cast<std::size_t>(frames) * frame_bytes + static_cast<std::size_t>(slots) * slot_bytes,
                          "pool of frames")) {
  for (int i = 0; i < frames + slots; ++i) {
    filled_.push_back(device.make_event());
    drained_.push_back(device.make_event());
  }
}

}  // namespace computron
