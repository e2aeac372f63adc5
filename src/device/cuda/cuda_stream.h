// Streams and events of the CUDA device. Everything here belongs to the thread that made the device.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>
#include <vector>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_handles.h"
#include "src/device/cuda/cuda_timer.h"
#include "src/device/cuda/graph_cache.h"

namespace computron {

class CudaEvent final : public Event {
 public:
  CudaEvent() : event_(make_cuda_event(cudaEventDisableTiming)) {}
  // The device is asked until it has said yes once: a page is waited for by every panel that lies in it.
  bool query() const override;
  cudaEvent_t handle() const { return event_.get(); }
  void record_on(cudaStream_t stream);

 private:
  CudaEventHandle event_;
  mutable bool reached_ = true;  // known to be
};

// Work runs beside the host: what it borrows must stay as it is until synchronize() has returned.
class CudaComputeStream final : public Stream {
 public:
  explicit CudaComputeStream(Progress& progress) : stream_(make_cuda_stream()), progress_(progress) {}

  ~CudaComputeStream() override;

  void record(Event& event) override;
  // Costs the device nothing where the event has been reached already; the stall is counted otherwise.
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  void run_capturable(const std::function<void()>& pass) override;
  bool captures_graphs() const override { return true; }
  std::uint64_t graph_launches() const override { return graphs_.launches(); }
  double exposed_s() const override { return waits_.seconds(); }
  cudaStream_t handle() const { return stream_.get(); }
  // Runs `work` once, on the thread that synchronizes next, when everything given so far has run; in the order given.
  void after(std::function<void()> work) { after_.push_back({std::move(work), /*even_if_dropped=*/false}); }
  // The same, and at once if it belongs to a rehearsal that comes to nothing: `work` gives back what was lent.
  void release_after(std::function<void()> work) { after_.push_back({std::move(work), /*even_if_dropped=*/true}); }
  // Every launch and copy goes through here. Calls `launch`, which gives the device what `parameters` determine; during
  // a rehearsal (graph_cache.h) only the parameters count.
  template <class Launch, class... Parameters>
  void launch(const char* what, Launch&& launch, const Parameters&... parameters) {
    if (recording_ != nullptr) {
      recording_->add(what);
      (recording_->add(parameters), ...);
    }
    if (!dry_) launch();
  }

 private:
  struct After {
    std::function<void()> work;
    bool even_if_dropped;
  };
  // Calls `pass`, and tells what it gives; in a rehearsal without giving it.
  LaunchRecord record_launches(const std::function<void()>& pass, bool rehearses);
  // Launched as a graph.
  bool launch_as_graph(const std::function<void()>& pass);
  // What was to be done after a pass that is not given: only what gives back what was lent is.
  void drop_after();
  // Ends the rehearsal, if there is one, of a pass that cannot be repeated.
  void forbid_in_dry_record() const;

  CudaStreamHandle stream_;
  Progress& progress_;
  CudaTimer waits_;
  std::vector<After> after_;
  LaunchRecord* recording_ = nullptr;
  bool dry_ = false;
  GraphCache graphs_;
};

// Every copy over the link is timed.
class CudaCopyStream final : public CopyStream {
 public:
  CudaCopyStream() : stream_(make_cuda_stream()) {}

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  CopyStatistics statistics() const override;

 private:
  CudaStreamHandle stream_;
  CudaTimer copies_;
};

// `stream` as what it is, and the runtime's stream behind it; Error{kInternal} for any other kind.
CudaComputeStream& cuda_compute(Stream& stream);
cudaStream_t cuda(Stream& stream);

}  // namespace computron
