// All frames of a rank: one device allocation made at start-up, and two events a frame that order copies and compute.
// Behind the frames lie the slots: small frames, for the pages of adapters (ShardLayout::slot_bytes), which are
// numbered on from the last frame.
//
//   copy stream      ... wait(drained) ── copy into the frame ── record(filled)
//   compute stream   record(drained) ──────────────────────────────────── wait(filled) ── uses ...
//
// Belongs to the thread that owns the compute stream.
#pragma once

#include <memory>
#include <vector>

#include "computron/base/types.h"
#include "computron/device/device.h"

namespace computron {

class FramePool {
 public:
  // OutOfDeviceMemory when the device has no room for frames × frame_bytes + slots × slot_bytes bytes.
  FramePool(Device& device, int frames, std::size_t frame_bytes, int slots = 0, std::size_t slot_bytes = 0);

  int frames() const { return frames_; }
  int frames_and_slots() const { return static_cast<int>(filled_.size()); }
  std::size_t frame_bytes() const { return frame_bytes_; }
  std::byte* base() const { return buffer_->data(); }
  std::byte* frame(FrameId f) const {
    const auto frames = static_cast<FrameId>(frames_);
    return base() + (f < frames ? f * frame_bytes_ : frames * frame_bytes_ + (f - frames) * slot_bytes_);
  }
  // Recorded on the copy stream after each copy into the frame, or out of it.
  Event& filled(FrameId f) { return *filled_[f]; }
  // Recorded on the compute stream behind the release point that the next copy into the frame, or out of it, waits for.
  Event& drained(FrameId f) { return *drained_[f]; }

 private:
  int frames_;
  std::size_t frame_bytes_, slot_bytes_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::vector<std::unique_ptr<Event>> filled_, drained_;
};

}  // namespace computron
