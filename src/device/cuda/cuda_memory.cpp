#include "src/device/cuda/cuda_memory.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "computron/base/memory.h"
#include "computron/base/size.h"
#include "computron/base/time.h"
#include "computron/base/types.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/mapped_pages.h"

namespace computron {
namespace {

constexpr std::size_t kAlignment = 4096;
constexpr int kMaxPopulateThreads = 8;  // more do not fill memory faster, and other ranks fill theirs
constexpr std::size_t kWorthAWord = std::size_t{1} << 30;  // pinning less is over before one wonders

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

std::string pinning_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "of unknown size";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_size(limit.rlim_cur);
}

[[noreturn]] void refuse_pinning(cudaError_t status, std::size_t slab, std::size_t pinned, std::size_t bytes,
                                 std::string_view what) {
  cudaGetLastError();  // not sticky: nothing is wrong but the size
  const auto [available, source] = available_memory();
  throw Error(ExitCode::kSystem,
              fmt::format("cannot pin {} of host memory for {} ({} of its {} are pinned; {}): the limit of locked "
                          "memory (ulimit -l) is {}, {} leaves {}. Raise the limit, as root or in the batch system's "
                          "daemon, serve fewer models, or spread them over more ranks",
                          format_size(slab), what, format_size(pinned), format_size(bytes), cudaGetErrorString(status),
                          pinning_limit(), source, format_size(available)));
}

// Registers a mapping slab by slab; unregisters what it has registered.
class PinnedSlabs {
 public:
  // Error{kSystem} naming `what` when the system refuses to pin a slab.
  PinnedSlabs(std::byte* data, std::size_t bytes, std::string_view what) {
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t part = std::min(bytes - at, bytes_left_in_slab(data + at));
      const auto status = cudaHostRegister(data + at, part, cudaHostRegisterDefault);
      if (status != cudaSuccess) {
        release();
        refuse_pinning(status, part, at, bytes, what);
      }
      slabs_.push_back(data + at);
      at += part;
    }
  }
  ~PinnedSlabs() { release(); }
  PinnedSlabs(const PinnedSlabs&) = delete;
  PinnedSlabs& operator=(const PinnedSlabs&) = delete;

 private:
  void release() {
    for (std::byte* slab : slabs_) COMPUTRON_CUDA_LOG(cudaHostUnregister(slab));
    slabs_.clear();
  }

  std::vector<std::byte*> slabs_;
};

class PinnedHostBuffer final : public HostBuffer {
 public:
  // Not pinned yet.
  PinnedHostBuffer(MappedPages pages, std::string_view what) : pages_(std::move(pages)), what_(what) {}

  std::byte* data() const override { return pages_.data(); }
  std::size_t bytes() const override { return pages_.bytes(); }
  bool populate(std::size_t begin, std::size_t end) override { return pages_.populate(begin, end); }
  void trim(std::size_t bytes) override {
    if (!slabs_) pages_.trim(bytes);  // what is pinned stays
  }
  void make_read_only() override {
    pin();
    pages_.make_read_only();
  }
  // Pages that do not exist yet are made. Empty buffers are not pinned: there is nothing to copy. Registered pages
  // cannot become huge ones any more.
  void pin() {
    if (slabs_) return;
    const double begin_s = now_s();
    pages_.collapse();
    slabs_.emplace(pages_.data(), pages_.bytes(), what_);
    if (pages_.bytes() < kWorthAWord) return;
    spdlog::info("pinned {} for {} in {:.2f} s", format_size(pages_.bytes()), what_, now_s() - begin_s);
  }

 private:
  MappedPages pages_;
  std::string what_;
  std::optional<PinnedSlabs> slabs_;  // goes first
};

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

std::size_t bytes_left_in_slab(const std::byte* host) {
  return kSlabBytes - reinterpret_cast<std::uintptr_t>(host) % kSlabBytes;
}

namespace {

std::unique_ptr<PinnedHostBuffer> on_node(int node, std::optional<MappedPages> pages, std::size_t bytes,
                                          std::string_view what) {
  if (!pages) refuse_host_memory(bytes, what);
  prefer_node(*pages, node);
  return std::make_unique<PinnedHostBuffer>(std::move(*pages), what);
}

}  // namespace

// Filling the pages before they are registered lets several threads do it; cudaMallocHost takes ten times as long.
std::unique_ptr<HostBuffer> allocate_pinned(int node, std::size_t bytes, std::string_view what) {
  std::optional<MappedPages> pages = MappedPages::map(bytes);
  if (!pages) refuse_host_memory(bytes, what);
  prefer_node(*pages, node);
  if (!pages->populate(populate_threads())) refuse_host_memory(bytes, what);
  auto buffer = std::make_unique<PinnedHostBuffer>(std::move(*pages), what);
  buffer->pin();
  return buffer;
}

std::unique_ptr<HostBuffer> reserve_pinned(int node, std::size_t bytes, std::string_view what) {
  return on_node(node, MappedPages::reserve(bytes), bytes, what);
}

std::unique_ptr<HostBuffer> map_pinned(int node, int memory, std::size_t offset, std::size_t bytes,
                                       std::string_view what) {
  return on_node(node, MappedPages::map_shared(memory, offset, bytes), bytes, what);
}

namespace {

// Where the system describes it.
std::string bus_folder(int device) {
  std::array<char, 32> bus_id{};
  COMPUTRON_CUDA_CHECK(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
  std::string name(bus_id.data());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return "/sys/bus/pci/devices/" + name;
}

}  // namespace

// The folder is a link into the tree of buses: /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/...
std::string bus_path_of(int device) {
  std::error_code error;
  const std::string folder = std::filesystem::canonical(bus_folder(device), error).string();
  const std::size_t root = folder.find("/pci");
  const std::size_t port = root == std::string::npos ? root : folder.find('/', root + 1);
  return error || port == std::string::npos ? std::string() : folder.substr(port + 1);
}

int numa_node_of(int device) {
  std::ifstream file(bus_folder(device) + "/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

}  // namespace computron
