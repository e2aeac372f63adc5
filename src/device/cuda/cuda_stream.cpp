#include "src/device/cuda/cuda_stream.h"

#include <utility>

#include "src/device/cuda/cuda_check.h"

namespace computron {
namespace {

const CudaEvent& cuda(const Event& event) {
  const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event);
  ensure(cuda_event != nullptr, "a CUDA stream was given an event of another device");
  return *cuda_event;
}

// Whether what `status` tells of has happened; throws unless it is known.
bool is_over(cudaError_t status, const char* call) {
  if (status == cudaErrorNotReady) return false;
  check_cuda(status, call);
  return true;
}

void record_on(cudaStream_t stream, Event& event) {
  COMPUTRON_CUDA_CHECK(cudaEventRecord(cuda(event).handle(), stream));
}

void wait_on(cudaStream_t stream, const Event& event) {
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(stream, cuda(event).handle(), 0));
}

void copy_on(cudaStream_t stream, std::byte* destination, const std::byte* source, std::size_t bytes,
             cudaMemcpyKind kind) {
  COMPUTRON_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, kind, stream));
}

}  // namespace

void CudaStreamDeleter::operator()(cudaStream_t stream) const { COMPUTRON_CUDA_LOG(cudaStreamDestroy(stream)); }
void CudaEventDeleter::operator()(cudaEvent_t event) const { COMPUTRON_CUDA_LOG(cudaEventDestroy(event)); }

CudaStreamHandle make_cuda_stream() {
  cudaStream_t stream = nullptr;
  COMPUTRON_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return CudaStreamHandle(stream);
}

CudaEventHandle make_cuda_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  COMPUTRON_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return CudaEventHandle(event);
}

bool CudaEvent::query() const { return is_over(cudaEventQuery(handle()), "cudaEventQuery"); }

void CudaComputeStream::record(Event& event) { record_on(handle(), event); }
void CudaComputeStream::wait(const Event& event) { wait_on(handle(), event); }

void CudaComputeStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy_on(handle(), destination, source, bytes, cudaMemcpyHostToDevice);
}

void CudaComputeStream::synchronize() {
  progress_.wait_until([this] { return is_over(cudaStreamQuery(handle()), "cudaStreamQuery"); });
  for (const auto& work : std::exchange(after_, {})) work();
}

void CudaCopyStream::record(Event& event) { record_on(stream_.get(), event); }
void CudaCopyStream::wait(const Event& event) { wait_on(stream_.get(), event); }

void CudaCopyStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy(destination, source, bytes, cudaMemcpyHostToDevice);
}

void CudaCopyStream::copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) {
  copy(destination, source, bytes, cudaMemcpyDeviceToHost);
}

void CudaCopyStream::copy(std::byte* destination, const std::byte* source, std::size_t bytes, cudaMemcpyKind kind) {
  auto copy = take_pair();
  copy.bytes = bytes;
  COMPUTRON_CUDA_CHECK(cudaEventRecord(copy.begin.get(), stream_.get()));
  copy_on(stream_.get(), destination, source, bytes, kind);
  COMPUTRON_CUDA_CHECK(cudaEventRecord(copy.end.get(), stream_.get()));
  copies_.push_back(std::move(copy));
}

void CudaCopyStream::synchronize() { COMPUTRON_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

LinkStatistics CudaCopyStream::statistics() const {
  count_finished();
  return counted_;
}

CudaCopyStream::TimedCopy CudaCopyStream::take_pair() {
  count_finished();
  if (free_pairs_.empty()) return {make_cuda_event(cudaEventDefault), make_cuda_event(cudaEventDefault)};
  auto pair = std::move(free_pairs_.back());
  free_pairs_.pop_back();
  return pair;
}

// Copies on one stream do not overlap, so the union of their times is the sum.
void CudaCopyStream::count_finished() const {
  while (!copies_.empty() && is_over(cudaEventQuery(copies_.front().end.get()), "cudaEventQuery")) {
    auto& copy = copies_.front();
    float elapsed_ms = 0;
    COMPUTRON_CUDA_CHECK(cudaEventElapsedTime(&elapsed_ms, copy.begin.get(), copy.end.get()));
    counted_.bytes += copy.bytes;
    counted_.busy_s += 1e-3 * static_cast<double>(elapsed_ms);
    free_pairs_.push_back(std::move(copy));
    copies_.pop_front();
  }
}

CudaComputeStream& cuda_compute(Stream& stream) {
  auto* compute = dynamic_cast<CudaComputeStream*>(&stream);
  ensure(compute != nullptr, "a CUDA operation was given a stream that is not a CUDA compute stream");
  return *compute;
}

cudaStream_t cuda(Stream& stream) { return cuda_compute(stream).handle(); }

}  // namespace computron
