// The CUDA device: cudaMalloc, pinned host pages, copy engines, streams and events of the runtime.
#include <fmt/format.h>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_memory.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {
namespace {

constexpr std::size_t kDefaultPageBytes = std::size_t{64} << 20;

// "GPU-8a6fb2e4-..." of 16 bytes, as nvidia-smi -L prints it.
std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// Used by the thread that made it: the runtime's current device is a thread's.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int device) : device_(device) {
    COMPUTRON_CUDA_CHECK(cudaSetDevice(device));
    COMPUTRON_CUDA_CHECK(cudaGetDeviceProperties(&properties_, device));
    node_ = numa_node_of(device);
  }

  std::string name() const override { return fmt::format("cuda {}: {}", device_, properties_.name); }
  std::size_t default_page_bytes() const override { return kDefaultPageBytes; }
  std::string hardware_id() const override { return text_of(properties_.uuid); }
  int numa_node() const override { return node_; }
  std::string bus_path() const override { return bus_path_of(device_); }
  bool verifies_pages() const override { return true; }
  bool decodes_pages() const override { return true; }
  int landing_pages() const override { return kLandingPages; }
  std::optional<MemoryLimit> own_memory() const override {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    COMPUTRON_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return MemoryLimit{free_bytes, name()};
  }

  std::unique_ptr<DeviceBuffer> allocate(std::size_t bytes, std::string_view what) override {
    return allocate_cuda(device_, bytes, what);
  }
  std::unique_ptr<HostBuffer> allocate_host(std::size_t bytes, std::string_view what) override {
    return allocate_pinned(node_, bytes, what);
  }
  std::unique_ptr<HostBuffer> reserve_host(std::size_t bytes, std::string_view what) override {
    return reserve_pinned(node_, bytes, what);
  }
  std::unique_ptr<HostBuffer> map_host(int memory, std::size_t offset, std::size_t bytes,
                                       std::string_view what) override {
    return map_pinned(node_, memory, offset, bytes, what);
  }
  std::unique_ptr<Stream> make_compute_stream(Progress& progress) override {
    return std::make_unique<CudaComputeStream>(progress);
  }
  std::unique_ptr<CopyStream> make_copy_stream(const LargestPages& largest) override {
    return std::make_unique<CudaCopyStream>(device_, largest);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }

 private:
  int device_;
  int node_ = -1;
  cudaDeviceProp properties_{};
};

struct DeviceCount {
  int devices = 0;
  const char* reason = "";  // where there is none
};

DeviceCount count_devices() noexcept {
  int count = 0;
  const auto status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return {count, count == 0 ? "none is visible" : ""};
  cudaGetLastError();
  return {0, cudaGetErrorString(status)};
}

}  // namespace

// Batch systems show a rank either all devices of its node or only its own, as number 0.
std::unique_ptr<Device> make_cuda_device(int local_rank) {
  const auto [count, reason] = count_devices();
  if (count == 0) {
    throw Error(ExitCode::kDevice,
                fmt::format("cuda: this machine has no usable GPU ({}): use --device cpu, or look what nvidia-smi says",
                            reason));
  }
  return std::make_unique<CudaDevice>(local_rank % count);
}

bool cuda_device_present() noexcept { return count_devices().devices > 0; }

std::string accelerator_library() {
  return fmt::format("CUDA {}.{}", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
}

}  // namespace computron
