// The device that tests of any device run on: the CPU's, or, where COMPUTRON_TEST_DEVICE is "cuda" (ctest label gpu), a
// GPU. One source for all: device memory is touched through streams only.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>

#include "computron/device/device.h"

namespace computron::test {

inline std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline bool on_cpu() { return environment("COMPUTRON_TEST_DEVICE") != "cuda"; }

// `options` count on the CPU only. Ranks share the GPUs that there are.
inline std::unique_ptr<Device> make_test_device(const CpuDeviceOptions& options, int rank = 0) {
  return on_cpu() ? make_cpu_device(options) : make_cuda_device(rank);
}

}  // namespace computron::test
