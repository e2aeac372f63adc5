// CUDA C++ as C++: included before kernels/cuda/*.cu, of which CMake has turned `kernel<<<grid, block, bytes,
// stream>>>(...)` into `launch(...)` and dynamic shared memory into a pointer. What is in PTX has its twin under
// replaced/.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/emulated_gpu/block.h"
#include "tests/emulated_gpu/stream.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ thread_local  // a block at a time runs on a stream's thread; keeps the last block's values
#define __grid_constant__
#define __launch_bounds__(...)

#define threadIdx (::computron::emulated_gpu::place.threadIdx)
#define blockIdx (::computron::emulated_gpu::place.blockIdx)
#define blockDim (::computron::emulated_gpu::place.blockDim)
#define gridDim (::computron::emulated_gpu::place.gridDim)

using std::isfinite;
using std::max;
using std::min;

inline void __syncthreads() { ::computron::emulated_gpu::barrier(); }
inline int __syncthreads_and(int condition) { return ::computron::emulated_gpu::barrier(condition); }

template <class T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int offset) {
  return ::computron::emulated_gpu::exchange(value)[::computron::emulated_gpu::lane() ^ offset].template as<T>();
}
// Within each `width` neighbouring lanes; a lane that has none below it keeps its own value.
template <class T>
T __shfl_sync(unsigned /*mask*/, T value, int from, int width = ::computron::emulated_gpu::kLanes) {
  const int first = ::computron::emulated_gpu::lane() / width * width;
  return ::computron::emulated_gpu::exchange(value)[first + from % width].template as<T>();
}
template <class T>
T __shfl_up_sync(unsigned /*mask*/, T value, int offset, int width = ::computron::emulated_gpu::kLanes) {
  const int lane = ::computron::emulated_gpu::lane();
  return ::computron::emulated_gpu::exchange(value)[lane % width < offset ? lane : lane - offset].template as<T>();
}
// Byte i of the result is the byte of `high`:`low` that nibble i of `selector` names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned chosen = 0;
  for (int i = 0; i < 4; ++i) {
    chosen |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
  }
  return chosen;
}
inline unsigned __ballot_sync(unsigned /*mask*/, bool vote) {
  const auto* votes = ::computron::emulated_gpu::exchange(unsigned{vote});
  unsigned ballot = 0;
  for (int i = 0; i < ::computron::emulated_gpu::kLanes; ++i) ballot |= votes[i].as<unsigned>() << i;
  return ballot;
}
// Lanes that gave the same.
inline unsigned __match_any_sync(unsigned /*mask*/, int value) {
  const auto* values = ::computron::emulated_gpu::exchange(value);
  unsigned alike = 0;
  for (int i = 0; i < ::computron::emulated_gpu::kLanes; ++i) alike |= unsigned{values[i].as<int>() == value} << i;
  return alike;
}
inline void __syncwarp() { ::computron::emulated_gpu::exchange(0); }
inline std::uint64_t __umul64hi(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }

template <class T>
T __ldg(const T* p) {
  ::computron::emulated_gpu::check_aligned(p, sizeof(T));
  return *p;
}
// What a kernel reads of host memory crosses the link, as a copy does (COMPUTRON_EMULATED_FLIP).
template <class T>
T __ldcv(const T* p) {
  ::computron::emulated_gpu::check_aligned(p, sizeof(T));
  T value = *p;
  ::computron::emulated_gpu::damage_read(p, {reinterpret_cast<std::byte*>(&value), sizeof value});
  return value;
}
// Of the values of a warp's lanes.
inline unsigned __reduce_max_sync(unsigned /*mask*/, unsigned value) {
  const auto* values = ::computron::emulated_gpu::exchange(value);
  for (int i = 0; i < ::computron::emulated_gpu::kLanes; ++i) value = std::max(value, values[i].as<unsigned>());
  return value;
}
inline int __reduce_min_sync(unsigned /*mask*/, int value) {
  const auto* values = ::computron::emulated_gpu::exchange(value);
  for (int i = 0; i < ::computron::emulated_gpu::kLanes; ++i) value = std::min(value, values[i].as<int>());
  return value;
}
// Fibers of one thread: nothing comes between.
inline int atomicAdd(int* p, int value) { return std::exchange(*p, *p + value); }
inline unsigned atomicOr(unsigned* p, unsigned bits) { return std::exchange(*p, *p | bits); }

namespace computron::emulated_gpu {

constexpr std::size_t kSharedUnasked = std::size_t{48} << 10;

// Of each kernel that has asked for more than kSharedUnasked.
inline std::map<const void*, std::size_t>& shared_asked() {
  static std::map<const void*, std::size_t> asked;
  return asked;
}

template <class Kernel>
cudaError_t set_attribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  const bool has = value >= 0 && static_cast<std::size_t>(value) <= most_shared();
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || !has) return told(cudaErrorInvalidValue);
  shared_asked()[reinterpret_cast<const void*>(kernel)] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

inline bool fits(dim3 grid, dim3 block, std::size_t shared_bytes, const void* kernel) {
  const auto asked = shared_asked().find(kernel);
  const std::size_t most = asked == shared_asked().end() ? kSharedUnasked : std::max(kSharedUnasked, asked->second);
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.x < 1u << 31 && grid.y > 0 && grid.y < 1u << 16 && grid.z > 0 && grid.z < 1u << 16 &&
         threads > 0 && threads <= 1024 && block.z <= 64 && shared_bytes <= most;
}

template <class... Parameters, class... Arguments>
void launch(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (!fits(grid, block, shared_bytes, reinterpret_cast<const void*>(kernel))) {
    return set_last_error(cudaErrorInvalidConfiguration);
  }
  note_kernel(stream);
  enqueue(stream, [=, values = std::tuple<std::remove_cv_t<Parameters>...>(arguments...)] {
    run_grid(grid, block, shared_bytes, [&] { std::apply(kernel, values); });
  });
}

}  // namespace computron::emulated_gpu

#define cudaFuncSetAttribute ::computron::emulated_gpu::set_attribute
