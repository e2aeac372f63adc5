#include "src/device/cuda/refused_pages.h"

#include <atomic>
#include <climits>
#include <new>

#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_memory.h"
#include "src/device/wrong_page.h"

namespace computron {
namespace {

constexpr std::size_t kNames = 4096;  // that far back a refused page has its name

// What a kernel may write meanwhile.
template <class T>
T told(T& word) {
  return std::atomic_ref(word).load(std::memory_order_relaxed);
}

}  // namespace

RefusedPages::RefusedPages() : memory_(allocate_pinned(/*node=*/-1, sizeof(Told), "refused pages")), names_(kNames) {
  host_ = new (memory_->data()) Told{};
  void* mapped = nullptr;
  COMPUTRON_CUDA_CHECK(cudaHostGetDevicePointer(&mapped, host_, 0));
  mapped_ = static_cast<Told*>(mapped);
}

int RefusedPages::number(const PageName& name) {
  numbers_ = numbers_ == INT_MAX ? 1 : numbers_ + 1;
  names_[static_cast<std::size_t>(numbers_) % names_.size()] = name;
  return numbers_;
}

int* RefusedPages::word() const { return &mapped_->refused; }
kernels::cuda::VerifiedPages* RefusedPages::verified() const { return &mapped_->verified; }

void RefusedPages::check() const {
  if (const kernels::cuda::LostPage lost(told(host_->verified.lost)); lost.number != 0) {
    throw wrong_page(name_of(lost.number), !lost.undecoded, lost.same);
  }
  const int number = told(host_->refused);
  if (number == 0) return;
  const PageName& name = name_of(number);
  throw Error(
      ExitCode::kDevice,
      fmt::format("page {} of model {} cannot be decoded: what host memory holds of it, or what has crossed the "
                  "link, is damaged",
                  name.page, name.owner));
}

kernels::cuda::VerifiedPages RefusedPages::counts() const {
  return {.verified = told(host_->verified.verified),
          .copied_again = told(host_->verified.copied_again),
          .bytes_again = told(host_->verified.bytes_again),
          .lost = 0};
}

}  // namespace computron
