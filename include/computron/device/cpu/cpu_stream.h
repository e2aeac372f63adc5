// The CPU device's compute stream as the CPU operations see it: closures over a pool of compute threads.
#pragma once

#include <cstdint>
#include <functional>

#include "computron/device/device.h"

namespace computron {

// A record of an event, fixed when the waiting work was enqueued. Copyable; cheap.
// `event` null: always complete.
class CpuEvent;
struct CpuEventMark {
  const CpuEvent* event = nullptr;
  std::uint64_t record = 0;
};

// The latest record of `event` (of a CPU device; may be null).
CpuEventMark mark_of(const Event* event);
// True once `mark` has been reached.
bool reached(const CpuEventMark& mark);

// Handed to work that runs on the compute stream.
class CpuContext {
 public:
  virtual ~CpuContext() = default;
  virtual int threads() const = 0;
  // Runs body(thread, item) for every item of [0, items), items taken from a shared counter by `threads()` threads,
  // thread 0 being the caller, and returns when all are done. The caller polls between its items. Rethrows the first
  // exception. One fork and one join; not reentrant.
  virtual void parallel_for(int items, const std::function<void(int thread, int item)>& body) = 0;
  // Waits for `mark` from any pool thread: a futex with a time-out; thread 0 polls at each time-out.
  // Time that thread 0 stalls here, or at the join because another thread does, is counted as exposed.
  virtual void wait(int thread, const CpuEventMark& mark) = 0;
  // Calls the stream's Progress; thread 0 only.
  virtual void poll() = 0;
};

class CpuComputeStream : public Stream {
 public:
  using Work = std::function<void(CpuContext&)>;
  // Runs `work` now, or later where the stream is wrapped (CpuDeviceOptions): capture by value everything that may
  // change.
  virtual void launch(Work work) = 0;
};

// The CPU compute stream behind `stream`; Error{kInternal} for any other kind.
CpuComputeStream& cpu(Stream& stream);

}  // namespace computron
