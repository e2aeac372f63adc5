#include "src/ops/cuda/staging.h"

#include <algorithm>
#include <bit>

#include "computron/base/types.h"
#include "src/device/cuda/cuda_check.h"

namespace computron {
namespace {

constexpr std::size_t kSlabBytes = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 256;
// Lists that grow from pass to pass, as those of blocks do, are uploaded in whole classes of sizes: what lies behind
// them stays where it was, and the pass the same (src/device/cuda/pass_graphs.h).
constexpr std::size_t kLeastUpload = 4096;
// Who gives this much without ever synchronizing is made to.
constexpr std::size_t kMostLentBytes = std::size_t{256} << 20;

}  // namespace

void Staging::make_room(CudaComputeStream& stream) const {
  if (lent_bytes_ > kMostLentBytes) stream.synchronize();
}

const std::byte* Staging::upload_bytes(CudaComputeStream& stream, std::span<const std::byte> bytes) {
  const std::size_t size_class = std::max(std::bit_ceil(bytes.size()), kLeastUpload);
  const Place place = take(stream, uploads_, size_class, /*with_copy=*/true);
  if (bytes.empty()) return place.device;
  std::memcpy(place.host, bytes.data(), bytes.size());
  stream.copy_to_device(place.device, place.host, size_class);
  return place.device;
}

void Staging::copy_to_device(CudaComputeStream& stream, std::byte* to, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const Place place = take(stream, plain_, bytes.size(), /*with_copy=*/false);
  std::memcpy(place.host, bytes.data(), bytes.size());
  stream.copy_to_device(to, place.host, bytes.size());
}

Staging::Place Staging::result_bytes(CudaComputeStream& stream, std::size_t bytes) {
  return take(stream, plain_, bytes, /*with_copy=*/false);
}

Staging::Place Staging::take(CudaComputeStream& stream, std::vector<Slab>& slabs, std::size_t bytes, bool with_copy) {
  const std::size_t needed = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  if (lent_bytes_ == 0) stream.give_back_after([this] { reset(); });
  lent_bytes_ += needed;
  const auto fits = [&](const Slab& slab) { return slab.host->bytes() - slab.used >= needed; };
  auto slab = std::find_if(slabs.begin(), slabs.end(), fits);
  if (slab == slabs.end()) {
    slabs.push_back(make_slab(std::max(needed, kSlabBytes), with_copy));
    slab = slabs.end() - 1;
  }
  const std::size_t offset = slab->used;
  slab->used += needed;
  return {slab->host->data() + offset, slab->device + offset};
}

Staging::Slab Staging::make_slab(std::size_t bytes, bool with_copy) {
  Slab slab;
  slab.host = device_.allocate_host(bytes, "staging");
  if (with_copy) {
    slab.copy = device_.allocate(bytes, "staging");
    slab.device = slab.copy->data();
  } else {
    void* device = nullptr;
    COMPUTRON_CUDA_CHECK(cudaHostGetDevicePointer(&device, slab.host->data(), 0));
    slab.device = static_cast<std::byte*>(device);
  }
  return slab;
}

void Staging::reset() {
  for (auto* slabs : {&uploads_, &plain_}) {
    for (Slab& slab : *slabs) slab.used = 0;
  }
  lent_bytes_ = 0;
  ++generation_;
}

}  // namespace computron
