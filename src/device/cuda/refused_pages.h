// What kernels tell the host of pages: which ones it must not go on with, and how many were found right.
#pragma once

#include <memory>
#include <vector>

#include "computron/device/device.h"
#include "kernels/cuda/page_digest.h"

namespace computron {

// Pages that kernels could not decode, and those that were wrong twice, as they note them in host memory. Streams and
// events share it, and may outlive each other.
class RefusedPages {
 public:
  RefusedPages();
  // A number for a page that is received next, not 0: what a kernel that refuses it tells. The name is borrowed.
  int number(const PageName& name);
  // For kernels that decode a page without a digest: they write its number there.
  int* word() const;
  // For kernels that verify pages.
  kernels::cuda::VerifiedPages* verified() const;
  // Error{kDevice} naming a page that a kernel has refused. Never blocks.
  void check() const;
  // What kernels have told so far, without `lost`.
  kernels::cuda::VerifiedPages counts() const;

 private:
  struct Told {
    kernels::cuda::VerifiedPages verified;
    int refused;
  };
  const PageName& name_of(int number) const { return names_[static_cast<std::size_t>(number) % names_.size()]; }

  std::unique_ptr<HostBuffer> memory_;
  Told* host_ = nullptr;         // in memory_
  Told* mapped_ = nullptr;       // where kernels find it
  std::vector<PageName> names_;  // [number % size]: many more than are ever under way
  int numbers_ = 0;
};

}  // namespace computron
