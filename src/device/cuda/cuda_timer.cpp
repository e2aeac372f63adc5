#include "src/device/cuda/cuda_timer.h"

#include <utility>

#include "src/device/cuda/cuda_check.h"

namespace computron {

void CudaTimer::begin(cudaStream_t stream) {
  open_ = take();
  COMPUTRON_CUDA_CHECK(cudaEventRecord(open_.begin.get(), stream));
}

void CudaTimer::end(cudaStream_t stream, std::size_t bytes, std::size_t decoded_bytes) {
  open_.bytes = bytes;
  open_.decoded_bytes = decoded_bytes;
  COMPUTRON_CUDA_CHECK(cudaEventRecord(open_.end.get(), stream));
  intervals_.push_back(std::move(open_));
}

double CudaTimer::seconds() const {
  count_finished();
  return seconds_;
}

std::size_t CudaTimer::bytes() const {
  count_finished();
  return bytes_;
}

std::size_t CudaTimer::decoded_bytes() const {
  count_finished();
  return decoded_bytes_;
}

CudaTimer::Interval CudaTimer::take() {
  count_finished();
  if (free_.empty()) return {make_cuda_event(cudaEventDefault), make_cuda_event(cudaEventDefault)};
  auto interval = std::move(free_.back());
  free_.pop_back();
  return interval;
}

void CudaTimer::count_finished() const {
  while (!intervals_.empty() && is_over(cudaEventQuery(intervals_.front().end.get()), "cudaEventQuery")) {
    Interval& interval = intervals_.front();
    float elapsed_ms = 0;
    COMPUTRON_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, interval.begin.get(), interval.end.get()));
    seconds_ += 1e-3 * static_cast<double>(elapsed_ms);
    bytes_ += interval.bytes;
    decoded_bytes_ += interval.decoded_bytes;
    free_.push_back(std::move(interval));
    intervals_.pop_front();
  }
}

}  // namespace computron
