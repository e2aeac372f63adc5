#include "src/device/cuda/cuda_memory.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string>

#include "computron/base/memory.h"
#include "computron/base/size.h"
#include "computron/base/types.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/mapped_pages.h"

namespace computron {
namespace {

constexpr std::size_t kAlignment = 4096;
constexpr int kMaxPopulateThreads = 8;  // more do not fill memory faster, and other ranks fill theirs

struct CudaFree {
  void operator()(std::byte* data) const { COMPUTRON_CUDA_LOG(cudaFree(data)); }
};
using CudaBytes = std::unique_ptr<std::byte, CudaFree>;

class CudaDeviceBuffer final : public DeviceBuffer {
 public:
  // `owned` holds kAlignment bytes more than `bytes`.
  CudaDeviceBuffer(CudaBytes owned, std::size_t bytes) : owned_(std::move(owned)), bytes_(bytes) {}

  std::byte* data() const override {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(owned_.get()) % kAlignment;
    return owned_.get() + (kAlignment - misaligned) % kAlignment;
  }
  std::size_t bytes() const override { return bytes_; }

 private:
  CudaBytes owned_;
  std::size_t bytes_;
};

class PinnedHostBuffer final : public HostBuffer {
 public:
  // Empty buffers are not pinned: there is nothing to copy.
  explicit PinnedHostBuffer(MappedPages pages) : pages_(std::move(pages)) {
    if (bytes() > 0) COMPUTRON_CUDA_CHECK(cudaHostRegister(data(), bytes(), cudaHostRegisterDefault));
  }
  ~PinnedHostBuffer() override {
    if (bytes() > 0) COMPUTRON_CUDA_LOG(cudaHostUnregister(data()));
  }
  PinnedHostBuffer(const PinnedHostBuffer&) = delete;
  PinnedHostBuffer& operator=(const PinnedHostBuffer&) = delete;

  std::byte* data() const override { return pages_.data(); }
  std::size_t bytes() const override { return pages_.bytes(); }
  void make_read_only() override { pages_.make_read_only(); }

 private:
  MappedPages pages_;
};

// The NUMA node that `device` hangs from; -1 where the system does not say.
int numa_node_of(int device) {
  std::array<char, 32> bus_id{};
  COMPUTRON_CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
  std::string name(bus_id.data());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

// Pages that appear from now on come from `node` while it has some. A wish: a refusal costs copy rate only.
void prefer_node(const MappedPages& pages, int node) {
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> mask{};
  if (node < 0 || node >= kBits * static_cast<int>(mask.size())) return;
  mask[static_cast<std::size_t>(node / kBits)] = 1ul << (node % kBits);
  const long status = syscall(SYS_mbind, pages.data(), round_up(pages.bytes(), kAlignment), MPOL_PREFERRED, mask.data(),
                              mask.size() * kBits, 0u);
  if (status != 0) spdlog::warn("cuda: host pages may lie far from the device: mbind to node {} refused", node);
}

int populate_threads() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 1;
  return std::clamp(CPU_COUNT(&cpus), 1, kMaxPopulateThreads);
}

[[noreturn]] void refuse_device_memory(int device, std::size_t bytes, std::string_view what) {
  cudaGetLastError();  // not sticky: nothing is wrong but the size
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  COMPUTRON_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  throw OutOfDeviceMemory(fmt::format("cannot allocate {} of device memory for {} (cuda {}: {} free of {})",
                                      format_size(bytes), what, device, format_size(free_bytes),
                                      format_size(total_bytes)));
}

[[noreturn]] void refuse_host_memory(std::size_t bytes, std::string_view what) {
  const auto [available, source] = available_memory();
  throw Error(ExitCode::kSystem, fmt::format("cannot allocate {} of host memory for {} ({} available by {})",
                                             format_size(bytes), what, format_size(available), source));
}

}  // namespace

std::unique_ptr<DeviceBuffer> allocate_cuda(int device, std::size_t bytes, std::string_view what) {
  void* data = nullptr;
  const auto status = cudaMalloc(&data, checked_add(bytes, kAlignment, what));
  if (status == cudaErrorMemoryAllocation) refuse_device_memory(device, bytes, what);
  check_cuda(status, "cudaMalloc");
  return std::make_unique<CudaDeviceBuffer>(CudaBytes(static_cast<std::byte*>(data)), bytes);
}

// Filling the pages before they are registered lets several threads do it; cudaMallocHost takes ten times as long.
std::unique_ptr<HostBuffer> allocate_pinned(int device, std::size_t bytes, std::string_view what) {
  auto pages = MappedPages::map(bytes);
  if (!pages) refuse_host_memory(bytes, what);
  prefer_node(*pages, numa_node_of(device));
  if (!pages->populate(populate_threads())) refuse_host_memory(bytes, what);
  return std::make_unique<PinnedHostBuffer>(std::move(*pages));
}

}  // namespace computron
