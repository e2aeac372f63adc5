#include "src/device/cuda/page_decoder.h"

#include <atomic>
#include <climits>

#include "computron/base/types.h"
#include "kernels/cuda/coded_page.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_memory.h"

namespace computron {
namespace {

constexpr std::size_t kNames = 4096;      // that far back a refused page has its name
constexpr std::size_t kAlignment = 4096;  // of landing pages

}  // namespace

RefusedPages::RefusedPages() : memory_(allocate_pinned(/*node=*/-1, sizeof(int), "refused pages")), names_(kNames) {
  void* word = nullptr;
  COMPUTRON_CUDA_CHECK(cudaHostGetDevicePointer(&word, memory_->data(), 0));
  word_ = static_cast<int*>(word);
}

int RefusedPages::number(const PageName& name) {
  numbers_ = numbers_ == INT_MAX ? 1 : numbers_ + 1;
  names_[static_cast<std::size_t>(numbers_) % names_.size()] = name;
  return numbers_;
}

void RefusedPages::check() const {
  const int number = std::atomic_ref(*reinterpret_cast<int*>(memory_->data())).load(std::memory_order_relaxed);
  if (number == 0) return;
  const PageName& name = names_[static_cast<std::size_t>(number) % names_.size()];
  throw Error(
      ExitCode::kDevice,
      fmt::format("page {} of model {} cannot be decoded: what host memory holds of it, or what has crossed the "
                  "link, is damaged",
                  name.page, name.owner));
}

CudaPageDecoder::CudaPageDecoder(int device, std::size_t landing_bytes, cudaStream_t copies)
    : refused_(std::make_shared<RefusedPages>()),
      copies_(copies),
      stream_(make_urgent_cuda_stream()),
      copied_(make_cuda_event(cudaEventDisableTiming)),
      landing_bytes_(round_up(landing_bytes, kAlignment)),
      memory_(allocate_cuda(device, kLandingPages * landing_bytes_, "landing pages")) {
  for (int i = 0; i < kLandingPages; ++i) {
    landings_.push_back(
        {memory_->data() + static_cast<std::size_t>(i) * landing_bytes_, make_cuda_event(cudaEventDisableTiming)});
  }
}

std::byte* CudaPageDecoder::land(const HostPage& page) {
  ensure(page.link_bytes + kCodedPadding <= landing_bytes_, "a coded page is larger than a landing page");
  const Landing& landing = landings_[next_];
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(copies_, landing.decoded.get(), 0));
  return landing.data;
}

void CudaPageDecoder::decode(std::byte* frame, const HostPage& page, const PageName& name) {
  const Landing& landing = landings_[next_];
  kernels::cuda::decode_blocks(behind_copies(), {.coded = landing.data,
                                                 .coded_bytes = page.link_bytes,
                                                 .page_bytes = page.bytes,
                                                 .first = 0,
                                                 .end = coded_blocks(page.bytes),
                                                 .page = frame,
                                                 .refused = refused_->word(),
                                                 .number = refused_->number(name)});
  COMPUTRON_CUDA_CHECK(cudaGetLastError());
  COMPUTRON_CUDA_CHECK(cudaEventRecord(landing.decoded.get(), stream_.get()));
  next_ = (next_ + 1) % landings_.size();
  behind_ = true;
}

void CudaPageDecoder::join() {
  if (!behind_) return;
  const Landing& last = landings_[(next_ + landings_.size() - 1) % landings_.size()];
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(copies_, last.decoded.get(), 0));
  behind_ = false;
}

cudaStream_t CudaPageDecoder::behind_copies() {
  COMPUTRON_CUDA_CHECK(cudaEventRecord(copied_.get(), copies_));
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), copied_.get(), 0));
  return stream_.get();
}

}  // namespace computron
