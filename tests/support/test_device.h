// The device that tests of any device run on: the CPU's, or, where COMPUTRON_TEST_DEVICE is "cuda" (ctest label gpu), a
// GPU. One source for all: device memory is touched through streams only.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "computron/device/device.h"

namespace computron::test {

inline std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline bool on_cpu() { return environment("COMPUTRON_TEST_DEVICE") != "cuda"; }

// A GPU that can be told to fail (tests/emulated_gpu).
inline bool on_emulated_gpu() { return environment("COMPUTRON_TEST_EMULATED") == "1"; }

// `options` count on the CPU only. Ranks share the GPUs that there are.
inline std::unique_ptr<Device> make_test_device(const CpuDeviceOptions& options, int rank = 0) {
  return on_cpu() ? make_cpu_device(options) : make_cuda_device(rank);
}

// Values in device memory.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, Stream& stream, std::span<const T> values)
      : stream_(stream), buffer_(device.allocate(values.size_bytes(), "values of a test")), count_(values.size()) {
    stream.copy_to_device(buffer_->data(), reinterpret_cast<const std::byte*>(values.data()), values.size_bytes());
    stream.synchronize();
  }

  T* data() const { return reinterpret_cast<T*>(buffer_->data()); }
  std::size_t size() const { return count_; }
  // Once the stream has run everything: until then a copy to memory that is not pinned would hold the host, which the
  // stream may be waiting for.
  std::vector<T> values() const {
    std::vector<T> values(count_);
    stream_.synchronize();
    stream_.copy_to_host(reinterpret_cast<std::byte*>(values.data()), buffer_->data(), count_ * sizeof(T));
    stream_.synchronize();
    return values;
  }

 private:
  Stream& stream_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::size_t count_;
};

}  // namespace computron::test
