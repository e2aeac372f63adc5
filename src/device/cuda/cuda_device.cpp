// The CUDA device: cudaMalloc, pinned host pages, copy engines, streams and events of the runtime.
#include <fmt/format.h>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_memory.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {
namespace {

constexpr std::size_t kDefaultPageBytes = std::size_t{64} << 20;

// Used by the thread that made it: the runtime's current device is a thread's.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int device) : device_(device) { COMPUTRON_CUDA_CHECK(cudaSetDevice(device)); }

  std::string name() const override {
    cudaDeviceProp properties{};
    COMPUTRON_CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
    return fmt::format("cuda {}: {}", device_, properties.name);
  }
  std::size_t default_page_bytes() const override { return kDefaultPageBytes; }

  std::unique_ptr<DeviceBuffer> allocate(std::size_t bytes, std::string_view what) override {
    return allocate_cuda(device_, bytes, what);
  }
  std::unique_ptr<HostBuffer> allocate_host(std::size_t bytes, std::string_view what) override {
    return allocate_pinned(device_, bytes, what);
  }
  std::unique_ptr<Stream> make_compute_stream(Progress& progress) override {
    return std::make_unique<CudaComputeStream>(progress);
  }
  std::unique_ptr<CopyStream> make_copy_stream() override { return std::make_unique<CudaCopyStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }

 private:
  int device_;
};

// 0 where there is no driver or no GPU; not an error.
int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace

// Batch systems show a rank either all devices of its node or only its own, as number 0.
std::unique_ptr<Device> make_cuda_device(int local_rank) {
  const int count = device_count();
  if (count == 0) throw Error(ExitCode::kDevice, "cuda: this machine has no usable GPU");
  return std::make_unique<CudaDevice>(local_rank % count);
}

bool cuda_device_present() noexcept { return device_count() > 0; }

}  // namespace computron
