// Memory of the CUDA device, and host pages that its copy engines read.
#pragma once

#include <memory>
#include <string_view>

#include "computron/device/device.h"

namespace computron {

// On the current device, which is number `device`.
std::unique_ptr<DeviceBuffer> allocate_cuda(int device, std::size_t bytes, std::string_view what);
// Pinned, on the NUMA node of `device`.
std::unique_ptr<HostBuffer> allocate_pinned(int device, std::size_t bytes, std::string_view what);

}  // namespace computron
