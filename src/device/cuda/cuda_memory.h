// Memory of the CUDA device, and host pages that its copy engines read.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "computron/device/device.h"

namespace computron {

// By one cudaMalloc on the current device, which is number `device`. OutOfDeviceMemory.
std::unique_ptr<DeviceBuffer> allocate_cuda(int device, std::size_t bytes, std::string_view what);

// Host memory on NUMA node `node` (-1: anywhere), filled by several threads and then pinned in slabs, of which each
// ends where an address is a multiple of kSlabBytes. Error{kSystem} that says what limits it.
std::unique_ptr<HostBuffer> allocate_pinned(int node, std::size_t bytes, std::string_view what);

// The same, but only a part of it will be used: Device::reserve_host(). Pinned by make_read_only(): copies come later.
std::unique_ptr<HostBuffer> reserve_pinned(int node, std::size_t bytes, std::string_view what);

// The same of shared memory: Device::map_host().
std::unique_ptr<HostBuffer> map_pinned(int node, int memory, std::size_t offset, std::size_t bytes,
                                       std::string_view what);

// Registering takes the longer the more pieces there are, and much larger ones have been refused.
inline constexpr std::size_t kSlabBytes = std::size_t{64} << 30;

// Bytes from `host` to the end of the slab that it may lie in: what one copy may take.
std::size_t bytes_left_in_slab(const std::byte* host);

// The NUMA node that `device` hangs from; -1 where the system does not say.
int numa_node_of(int device);
// Device::bus_path() of it.
std::string bus_path_of(int device);

}  // namespace computron
