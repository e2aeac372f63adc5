// Intervals of a stream's time, each between two events of the runtime.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "src/device/cuda/cuda_handles.h"

namespace computron {

// Used by the thread that made the device. The intervals of one stream do not overlap, so their union is their sum.
class CudaTimer {
 public:
  // From here on `stream` ...
  void begin(cudaStream_t stream);
  // ... until here; `bytes` are counted with it, and what they stand for.
  void end(cudaStream_t stream, std::size_t bytes = 0, std::size_t decoded_bytes = 0);

  // Of the intervals that the device has left behind. Never blocks.
  double seconds() const;
  std::size_t bytes() const;
  std::size_t decoded_bytes() const;

 private:
  struct Interval {
    CudaEventHandle begin;
    CudaEventHandle end;
    std::size_t bytes = 0, decoded_bytes = 0;
  };

  Interval take();
  void count_finished() const;

  Interval open_;
  mutable std::deque<Interval> intervals_;  // not yet counted, in order
  mutable std::vector<Interval> free_;      // to be used again
  mutable double seconds_ = 0;
  mutable std::size_t bytes_ = 0, decoded_bytes_ = 0;
};

}  // namespace computron
