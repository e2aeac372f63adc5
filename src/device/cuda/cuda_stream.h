// Streams and events of the CUDA device. Everything here belongs to the thread that made the device.
//
//   compute stream   launch ── launch ── wait(event) ── launch ...     run_capturable(): one graph instead of launches
//   copy stream      fetch ── record(event) ── fetch ...               on a copy engine, beside the compute stream;
//                                                                      pages are decoded and verified behind it
//                                                                      (page_receiver.h)
//
// What must hold:
//   * While run_capturable() captures, nothing is waited for or recorded, and no host memory is lent: what would do it
//     throws Error{kInternal}, since a graph would repeat it (graph_cache.h).
//   * Host memory that enqueued work borrows is given back by after(), which runs in synchronize().
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_handles.h"
#include "src/device/cuda/cuda_timer.h"
#include "src/device/cuda/graph_cache.h"
#include "src/device/cuda/page_receiver.h"

namespace computron {

class CudaEvent final : public Event {
 public:
  CudaEvent() : event_(make_cuda_event(cudaEventDisableTiming)) {}
  // The device is asked until it has said yes once: a page's event is waited for by every panel that lies in the page.
  bool query() const override;
  cudaEvent_t handle() const { return event_.get(); }
  // `refused`: whoever waits is told of pages in it.
  void record_on(cudaStream_t stream, std::shared_ptr<RefusedPages> refused = nullptr);
  // Of the latest record; null where it was not a copy stream's.
  const std::shared_ptr<RefusedPages>& refused() const { return refused_; }

 private:
  CudaEventHandle event_;
  std::shared_ptr<RefusedPages> refused_;
  mutable bool reached_ = true;  // the latest record is known to have been reached
};

// Work runs beside the host: what it borrows must stay as it is until synchronize() has returned.
class CudaComputeStream final : public Stream {
 public:
  explicit CudaComputeStream(Progress& progress) : stream_(make_cuda_stream()), progress_(progress) {}

  ~CudaComputeStream() override;

  void record(Event& event) override;
  // Costs the device nothing where the event has been reached already; otherwise the stall is measured (exposed_s).
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  void run_capturable(const std::string& key, const std::function<void()>& work, const Agreement& agree) override;
  bool captures_graphs() const override { return true; }
  void drop_graphs() override { graphs_.drop(); }
  std::uint64_t graph_launches() const override { return graphs_.launches(); }
  double exposed_s() const override { return waits_.seconds(); }
  cudaStream_t handle() const { return stream_.get(); }
  // Runs `callback` once, in the next synchronize(), when everything launched so far has run. In the order of calls.
  void after(std::function<void()> callback);
  // What is launched now is kept for a graph.
  bool is_capturing() const { return capturing_; }

 private:
  // False, and nothing has been launched, where there is no memory for a graph.
  bool launch_captured(const std::string& key, const std::function<void()>& work, const Agreement& agree);
  void forbid_in_capture(const char* what) const;

  CudaStreamHandle stream_;
  Progress& progress_;
  CudaTimer waits_;                           // the stalls
  std::shared_ptr<RefusedPages> refused_;     // of events that the device has been told to wait for
  std::vector<std::function<void()>> after_;  // since the last synchronize()
  GraphCache graphs_;
  bool capturing_ = false;
};

// A stream of a copy engine. Every copy over the host link is timed.
class CudaCopyStream final : public CopyStream {
 public:
  // Device::make_copy_stream().
  CudaCopyStream(int device, const LargestPages& largest);

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  CopyStatistics statistics() const override;
  void fetch(std::byte* frame, const HostPage& page, const PageName& name,
             std::optional<std::uint64_t> digest) override;

 private:
  CudaStreamHandle stream_;
  CudaTimer copies_;
  CudaPageReceiver receiver_;
};

// `stream` as a CUDA compute stream, and the runtime's stream behind it; Error{kInternal} for any other kind.
CudaComputeStream& cuda_compute(Stream& stream);
cudaStream_t cuda(Stream& stream);

}  // namespace computron
