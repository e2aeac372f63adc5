// Streams and events of the CUDA device. Everything here belongs to the thread that made the device.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "computron/device/device.h"

namespace computron {

// Move-only owners of the runtime's handles.
struct CudaStreamDeleter {
  void operator()(cudaStream_t stream) const;
};
struct CudaEventDeleter {
  void operator()(cudaEvent_t event) const;
};
using CudaStreamHandle = std::unique_ptr<CUstream_st, CudaStreamDeleter>;
using CudaEventHandle = std::unique_ptr<CUevent_st, CudaEventDeleter>;

CudaStreamHandle make_cuda_stream();
CudaEventHandle make_cuda_event(unsigned flags);

class CudaEvent final : public Event {
 public:
  CudaEvent() : event_(make_cuda_event(cudaEventDisableTiming)) {}
  bool query() const override;
  cudaEvent_t handle() const { return event_.get(); }

 private:
  CudaEventHandle event_;
};

class CudaComputeStream final : public Stream {
 public:
  explicit CudaComputeStream(Progress& progress) : stream_(make_cuda_stream()), progress_(progress) {}

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  cudaStream_t handle() const { return stream_.get(); }
  // Runs `work` once, on the thread that synchronizes next, when everything given so far has run; in the order given.
  void after(std::function<void()> work) { after_.push_back(std::move(work)); }

 private:
  CudaStreamHandle stream_;
  Progress& progress_;
  std::vector<std::function<void()>> after_;
};

// Times every copy by a pair of events around it.
class CudaCopyStream final : public CopyStream {
 public:
  CudaCopyStream() : stream_(make_cuda_stream()) {}

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  LinkStatistics statistics() const override;

 private:
  struct TimedCopy {
    CudaEventHandle begin;
    CudaEventHandle end;
    std::size_t bytes = 0;
  };

  void copy(std::byte* destination, const std::byte* source, std::size_t bytes, cudaMemcpyKind kind);
  TimedCopy take_pair();
  void count_finished() const;

  CudaStreamHandle stream_;
  mutable std::deque<TimedCopy> copies_;       // not yet counted, in order
  mutable std::vector<TimedCopy> free_pairs_;  // to be used again
  mutable LinkStatistics counted_;
};

// `stream` as what it is, and the runtime's stream behind it; Error{kInternal} for any other kind.
CudaComputeStream& cuda_compute(Stream& stream);
cudaStream_t cuda(Stream& stream);

}  // namespace computron
