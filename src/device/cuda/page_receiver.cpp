#include "src/device/cuda/page_receiver.h"

#include <algorithm>

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "kernels/cuda/coded_page.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_memory.h"

namespace computron {
namespace {

using kernels::cuda::PageVerdict;

constexpr std::size_t kAlignment = 4096;  // of landing pages
constexpr std::size_t kVerdictRoom = 64;  // in front of the digests
static_assert(sizeof(PageVerdict) <= kVerdictRoom);

PageVerdict* verdict_in(const DeviceBuffer& memory) { return reinterpret_cast<PageVerdict*>(memory.data()); }
std::uint64_t* pieces_in(const DeviceBuffer& memory) {
  return reinterpret_cast<std::uint64_t*>(memory.data() + kVerdictRoom);
}
std::size_t pieces_of(std::size_t bytes) { return ceil_div(bytes, kDigestPieceBytes); }

void check_launch() { COMPUTRON_CUDA_CHECK(cudaGetLastError()); }

}  // namespace

CudaPageReceiver::CudaPageReceiver(int device, const LargestPages& largest, cudaStream_t copies)
    : refused_(std::make_shared<RefusedPages>()),
      copies_(copies),
      stream_(make_urgent_cuda_stream()),
      copied_(make_cuda_event(cudaEventDisableTiming)),
      landings_(kLandingPages) {
  for (Landing& landing : landings_) landing.received = make_cuda_event(cudaEventDisableTiming);
  if (largest.coded > 0) {
    landing_bytes_ = round_up(largest.coded, kAlignment);
    landing_memory_ = allocate_cuda(device, kLandingPages * landing_bytes_, "landing pages");
    for (std::size_t i = 0; i < landings_.size(); ++i) landings_[i].data = landing_memory_->data() + i * landing_bytes_;
  }
  if (largest.verified > 0) {
    piece_room_ = pieces_of(largest.verified);
    const std::size_t bytes = kVerdictRoom + piece_room_ * sizeof(std::uint64_t);
    verdict_ = allocate_cuda(device, bytes, "digests of pages");
    COMPUTRON_CUDA_CHECK(cudaMemsetAsync(verdict_->data(), 0, kVerdictRoom, stream_.get()));
  }
}

// The frames of pages that were received before the last kLandingPages are known to be behind `copies`, which has
// waited for those.
std::byte* CudaPageReceiver::land(std::byte* frame, const HostPage& page, bool verified) {
  const auto wait_for = [this](const Landing& landing) {
    COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(copies_, landing.received.get(), 0));
  };
  const Landing& next = landings_[next_];
  if (page.coded || verified) wait_for(next);
  if (page.coded) {
    ensure(page.link_bytes + kCodedPadding <= landing_bytes_, "a coded page is larger than a landing page");
    return next.data;
  }
  for (const Landing& landing : landings_) {
    if (landing.frame < frame + page.bytes && frame < landing.frame + landing.bytes) wait_for(landing);
  }
  return frame;
}

void CudaPageReceiver::receive(std::byte* frame, const HostPage& page, const PageName& name,
                               std::optional<std::uint64_t> digest) {
  if (!page.coded && !digest) return;
  behind_copies();
  const Arrived arrived{frame, page, refused_->number(name)};
  if (digest) {
    verify(arrived, *digest);
  } else {
    decode(arrived, refused_->word(), arrived.number, /*only_if=*/nullptr);
  }
  Landing& landing = landings_[next_];
  COMPUTRON_CUDA_CHECK(cudaEventRecord(landing.received.get(), stream_.get()));
  landing.frame = frame;
  landing.bytes = page.bytes;
  next_ = (next_ + 1) % landings_.size();
  behind_ = true;
}

void CudaPageReceiver::decode(const Arrived& arrived, int* refused, int number, const int* only_if) {
  kernels::cuda::decode_blocks(stream_.get(), {.coded = landings_[next_].data,
                                               .coded_bytes = arrived.page.link_bytes,
                                               .page_bytes = arrived.page.bytes,
                                               .first = 0,
                                               .end = coded_blocks(arrived.page.bytes),
                                               .page = arrived.frame,
                                               .refused = refused,
                                               .number = number,
                                               .only_if = only_if});
  check_launch();
}

// Both copies are enqueued; the kernels of the second one find that there is nothing to do where the first was right.
void CudaPageReceiver::verify(const Arrived& arrived, std::uint64_t digest) {
  ensure(pieces_of(arrived.page.bytes) <= piece_room_, "a page is verified that is larger than was said");
  PageVerdict* const verdict = verdict_in(*verdict_);
  if (arrived.page.coded) decode(arrived, &verdict->refused, /*number=*/1, /*only_if=*/nullptr);
  digest_and_judge(arrived, digest, /*again=*/false);
  copy_again(arrived);
  if (arrived.page.coded) decode(arrived, &verdict->refused, /*number=*/1, &verdict->wrong);
  digest_and_judge(arrived, digest, /*again=*/true);
}

void CudaPageReceiver::digest_and_judge(const Arrived& arrived, std::uint64_t digest, bool again) {
  PageVerdict* const verdict = verdict_in(*verdict_);
  std::uint64_t* const pieces = pieces_in(*verdict_);
  kernels::cuda::digest_pieces(stream_.get(), {.page = arrived.frame,
                                               .bytes = arrived.page.bytes,
                                               .pieces = pieces,
                                               .only_if = again ? &verdict->wrong : nullptr});
  check_launch();
  kernels::cuda::judge_page(stream_.get(), {.pieces = pieces,
                                            .count = pieces_of(arrived.page.bytes),
                                            .expected = digest,
                                            .again = again,
                                            .link_bytes = arrived.page.link_bytes,
                                            .number = arrived.number,
                                            .verdict = verdict,
                                            .told = refused_->verified()});
  check_launch();
}

// Host memory is mapped slab by slab, and may lie elsewhere for kernels (cuda_memory.h).
void CudaPageReceiver::copy_again(const Arrived& arrived) {
  const HostPage& page = arrived.page;
  std::byte* const to = page.coded ? landings_[next_].data : arrived.frame;
  for (std::size_t at = 0; at < page.link_bytes;) {
    const std::size_t part = std::min(page.link_bytes - at, bytes_left_in_slab(page.data + at));
    void* from = nullptr;
    COMPUTRON_CUDA_CHECK(cudaHostGetDevicePointer(&from, const_cast<std::byte*>(page.data) + at, 0));
    kernels::cuda::copy_again(stream_.get(), {.from = static_cast<const std::byte*>(from),
                                              .to = to + at,
                                              .bytes = part,
                                              .only_if = &verdict_in(*verdict_)->wrong});
    check_launch();
    at += part;
  }
}

void CudaPageReceiver::join() {
  if (!behind_) return;
  const Landing& last = landings_[(next_ + landings_.size() - 1) % landings_.size()];
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(copies_, last.received.get(), 0));
  behind_ = false;
}

cudaStream_t CudaPageReceiver::behind_copies() {
  COMPUTRON_CUDA_CHECK(cudaEventRecord(copied_.get(), copies_));
  COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), copied_.get(), 0));
  return stream_.get();
}

}  // namespace computron
