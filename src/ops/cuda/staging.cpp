#include "src/ops/cuda/staging.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdint>
#include <cstring>

#include "computron/base/types.h"
#include "kernels/cuda/elements.h"
#include "src/device/cuda/cuda_check.h"

namespace computron {
namespace {

constexpr std::size_t kSlabBytes = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 256;
// Who gives this much without ever synchronizing is made to.
constexpr std::size_t kMostLentBytes = std::size_t{256} << 20;

}  // namespace

void Staging::make_room(CudaComputeStream& stream) const {
  if (lent_bytes_ > kMostLentBytes) stream.synchronize();
}

const std::byte* Staging::upload_bytes(CudaComputeStream& stream, std::span<const std::byte> bytes) {
  const std::size_t whole_words = round_up(bytes.size(), sizeof(float));
  const Place place = take(stream, uploads_, whole_words, /*with_copy=*/true);
  if (bytes.empty()) return place.copy;
  std::memcpy(place.host, bytes.data(), bytes.size());
  copy_up(stream, place.copy, place.host, place.mapped, whole_words);
  return place.copy;
}

void Staging::copy_to_device(CudaComputeStream& stream, std::byte* to, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const Place place = take(stream, plain_, bytes.size(), /*with_copy=*/false);
  std::memcpy(place.host, bytes.data(), bytes.size());
  copy_up(stream, to, place.host, place.mapped, bytes.size());
}

// Words as numbers that nobody looks at; single bytes by the engine after all.
void copy_up(CudaComputeStream& stream, std::byte* to, const std::byte* host, const std::byte* mapped,
             std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(float);
  const std::size_t words = bytes / kWord;
  if ((reinterpret_cast<std::uintptr_t>(to) | bytes) % kWord != 0 || words > INT_MAX) {
    return stream.copy_to_device(to, host, bytes);
  }
  const int columns = static_cast<int>(words);
  kernels::cuda::for_each_element(
      stream.handle(), 1, columns,
      kernels::cuda::CopyRows<float, float>{reinterpret_cast<const float*>(mapped), columns, nullptr, 0,
                                            reinterpret_cast<float*>(to), columns});
  check_cuda(cudaGetLastError(), "a copy from pinned memory");
}

std::byte* mapped_address(const HostBuffer& buffer) {
  void* mapped = nullptr;
  COMPUTRON_CUDA_CHECK(cudaHostGetDevicePointer(&mapped, buffer.data(), 0));
  return static_cast<std::byte*>(mapped);
}

Staging::Place Staging::result_bytes(CudaComputeStream& stream, std::size_t bytes) {
  return take(stream, plain_, bytes, /*with_copy=*/false);
}

Staging::Place Staging::take(CudaComputeStream& stream, std::vector<Slab>& slabs, std::size_t bytes, bool with_copy) {
  const std::size_t needed = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  ensure(!stream.is_capturing(), "an operation of a graph takes host memory that its pass has not named");
  if (lent_bytes_ == 0) stream.after([this] { reset(); });
  lent_bytes_ += needed;
  const auto fits = [&](const Slab& slab) { return slab.host->bytes() - slab.used >= needed; };
  auto slab = std::find_if(slabs.begin(), slabs.end(), fits);
  if (slab == slabs.end()) {
    slabs.push_back(make_slab(std::max(needed, kSlabBytes), with_copy));
    slab = slabs.end() - 1;
  }
  const std::size_t offset = slab->used;
  slab->used += needed;
  return {slab->host->data() + offset, slab->mapped + offset, with_copy ? slab->copy->data() + offset : nullptr};
}

Staging::Slab Staging::make_slab(std::size_t bytes, bool with_copy) {
  Slab slab;
  slab.host = device_.allocate_host(bytes, "staging");
  if (with_copy) slab.copy = device_.allocate(bytes, "staging");
  slab.mapped = mapped_address(*slab.host);
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
