// All frames of a rank: one device allocation made at start-up, and two events a frame that order copies and compute.
#pragma once

#include <memory>
#include <vector>

#include "computron/base/types.h"

#include "computron/device/device.h"

namespace computron {

class FramePool {
 public:
  // OutOfDeviceMemory when the device cannot give frames × frame_bytes.
  FramePool(Device& device, int frames, std::size_t frame_bytes);

  int frames() const { return static_cast<int>(filled_.size()); }
  std::size_t frame_bytes() const { return frame_bytes_; }
  std::byte* base() const { return buffer_->data(); }
  std::byte* frame(FrameId f) const { return base() + f * frame_bytes_; }
  // Recorded on the copy stream after a fetch into the frame.
  Event& filled(FrameId f) { return *filled_[f]; }
  // Recorded on the compute stream after the last use before a fetch into the frame.
  Event& drained(FrameId f) { return *drained_[f]; }

 private:
  std::size_t frame_bytes_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::vector<std::unique_ptr<Event>> filled_, drained_;
};

}  // namespace computron
