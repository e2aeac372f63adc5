#include "src/device/cuda/cuda_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_memory.h"

namespace computron {
namespace {

const CudaEvent& cuda(const Event& event) {
  const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event);
  ensure(cuda_event != nullptr, "a CUDA stream was given an event of another device");
  return *cuda_event;
}
CudaEvent& cuda(Event& event) { return const_cast<CudaEvent&>(cuda(static_cast<const Event&>(event))); }

void wait_on(cudaStream_t stream, const Event& event) {
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(stream, cuda(event).handle(), 0));
}

// `host`: the side of the copy that lies in host memory. That is pinned slab by slab, and a copy may not cross from one
// slab into the next (cuda_memory.h), so it is cut there.
void copy_over_link(cudaStream_t stream, std::byte* destination, const std::byte* source, std::size_t bytes,
                    const std::byte* host, cudaMemcpyKind kind) {
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t part = std::min(bytes - at, bytes_left_in_slab(host + at));
    COMPUTRON_CUDA_CHECK(cudaMemcpyAsync(destination + at, source + at, part, kind, stream));
    at += part;
  }
}

void copy_up(cudaStream_t stream, std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy_over_link(stream, destination, source, bytes, source, cudaMemcpyHostToDevice);
}
void copy_down(cudaStream_t stream, std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy_over_link(stream, destination, source, bytes, destination, cudaMemcpyDeviceToHost);
}
void copy_within(cudaStream_t stream, std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (bytes == 0) return;
  COMPUTRON_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, stream));
}

// True for as long as it lives.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};

}  // namespace

void CudaEvent::record_on(cudaStream_t stream, std::shared_ptr<RefusedPages> refused) {
  COMPUTRON_CUDA_CHECK(cudaEventRecord(handle(), stream));
  refused_ = std::move(refused);
  reached_ = false;
}

bool CudaEvent::query() const {
  if (!reached_) reached_ = is_over(cudaEventQuery(handle()), "cudaEventQuery");
  if (reached_ && refused_) refused_->check();
  return reached_;
}

CudaComputeStream::~CudaComputeStream() {
  if (graph_launches() > 0) spdlog::info("cuda: {} passes were launched as graphs", graph_launches());
}

void CudaComputeStream::record(Event& event) {
  forbid_in_capture("an event is recorded");
  cuda(event).record_on(handle());
}

void CudaComputeStream::wait(const Event& event) {
  if (cuda(event).query()) return;
  forbid_in_capture("an event is waited for");
  waits_.begin(handle());
  wait_on(handle(), event);
  waits_.end(handle());
  if (cuda(event).refused()) refused_ = cuda(event).refused();
}

void CudaComputeStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy_up(handle(), destination, source, bytes);
}
void CudaComputeStream::copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy_down(handle(), destination, source, bytes);
}
void CudaComputeStream::copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy_within(handle(), destination, source, bytes);
}

void CudaComputeStream::after(std::function<void()> callback) {
  forbid_in_capture("host memory is lent");
  after_.push_back(std::move(callback));
}

void CudaComputeStream::forbid_in_capture(const char* what) const {
  if (capturing_) throw Error(ExitCode::kInternal, fmt::format("internal: {} in the work of a graph", what));
}

void CudaComputeStream::run_capturable(const std::string& key, const std::function<void()>& work,
                                       const Agreement& agree) {
  switch (graphs_.next(key)) {
    case GraphCache::Course::kReplay:
      return graphs_.launch(key, handle());
    case GraphCache::Course::kCapture:
      if (launch_captured(key, work, agree)) return;
      [[fallthrough]];
    case GraphCache::Course::kPlain:
      return work();
  }
}

bool CudaComputeStream::launch_captured(const std::string& key, const std::function<void()>& work,
                                        const Agreement& agree) {
  const auto captured = [&] {
    const Flag flag(capturing_);
    work();
  };
  if (!graphs_.capture(key, handle(), captured, agree)) return false;
  graphs_.launch(key, handle());
  return true;
}

void CudaComputeStream::synchronize() {
  forbid_in_capture("the stream is waited for");
  progress_.wait_until([this] { return is_over(cudaStreamQuery(handle()), "cudaStreamQuery"); });
  for (const auto& callback : std::exchange(after_, {})) callback();
  if (refused_) refused_->check();
}

CudaCopyStream::CudaCopyStream(int device, const LargestPages& largest)
    : stream_(make_cuda_stream()), receiver_(device, largest, stream_.get()) {}

// The copy engine does not wait for pages to be received: whoever waits for the event does.
void CudaCopyStream::record(Event& event) {
  cuda(event).record_on(receiver_.is_behind() ? receiver_.behind_copies() : stream_.get(), receiver_.refused());
}

void CudaCopyStream::wait(const Event& event) {
  if (!cuda(event).query()) wait_on(stream_.get(), event);
}

void CudaCopyStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  receiver_.join();  // what follows finds pages received
  copies_.begin(stream_.get());
  copy_up(stream_.get(), destination, source, bytes);
  copies_.end(stream_.get(), bytes, bytes);
}

void CudaCopyStream::copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) {
  receiver_.join();
  copies_.begin(stream_.get());
  copy_down(stream_.get(), destination, source, bytes);
  copies_.end(stream_.get(), bytes, bytes);
}

void CudaCopyStream::copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  receiver_.join();
  copy_within(stream_.get(), destination, source, bytes);
}

void CudaCopyStream::fetch(std::byte* frame, const HostPage& page, const PageName& name,
                           std::optional<std::uint64_t> digest) {
  std::byte* const to = receiver_.land(frame, page, digest.has_value());
  copies_.begin(stream_.get());
  copy_up(stream_.get(), to, page.data, page.link_bytes);
  copies_.end(stream_.get(), page.link_bytes, page.bytes);
  receiver_.receive(frame, page, name, digest);
}

void CudaCopyStream::synchronize() {
  receiver_.join();
  COMPUTRON_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  receiver_.refused()->check();
}

CopyStatistics CudaCopyStream::statistics() const {
  const kernels::cuda::VerifiedPages pages = receiver_.refused()->counts();
  return {.bytes = copies_.bytes() + pages.bytes_again,
          .frame_bytes = copies_.decoded_bytes(),
          .busy_s = copies_.seconds(),
          .pages_verified = pages.verified,
          .pages_refetched = pages.copied_again};
}

CudaComputeStream& cuda_compute(Stream& stream) {
  auto* compute = dynamic_cast<CudaComputeStream*>(&stream);
  ensure(compute != nullptr, "a CUDA operation was given a stream that is not a CUDA compute stream");
  return *compute;
}

cudaStream_t cuda(Stream& stream) { return cuda_compute(stream).handle(); }

}  // namespace computron
