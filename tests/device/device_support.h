// What the device tests share.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/device/cpu/cpu_stream.h"
#include "computron/device/device.h"

namespace computron {

inline constexpr IdlePolicy kTestIdle{.kind = IdlePolicy::Kind::kYield};

// Bytes that differ everywhere and by `seed`.
inline std::vector<std::byte> pattern(std::size_t count, std::uint64_t seed = 1) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(mix64(seed * 0x10001 + i));
  return bytes;
}

// Work that keeps the calling thread here for a while; for tests that would pass by luck if everything were fast.
inline void linger(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// A CPU device, its compute stream and its copy stream.
struct CpuBench {
  explicit CpuBench(const CpuDeviceOptions& options)
      : device(make_cpu_device(options)),
        compute(device->make_compute_stream(progress)),
        copy(device->make_copy_stream()) {}

  void launch(CpuComputeStream::Work work) { cpu(*compute).launch(std::move(work)); }

  Progress progress{kTestIdle};
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<CopyStream> copy;
};

}  // namespace computron
