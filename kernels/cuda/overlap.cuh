// Kernels that begin while the one before them ends: programmatic dependent launch (CUDA C++ Programming Guide,
// "Programmatic Dependent Launch and Synchronization"; PTX ISA, "griddepcontrol"). A decode pass is hundreds of short
// kernels, each of which would otherwise wait for the last block of the one before, and then to be launched.
//
// The rule for a kernel that launch_overlapped() launches: every thread calls wait_for_previous_kernel() before it
// leaves, and before it touches anything that kernels write; in front of it only weights may be read. Then whoever
// waits for this kernel has waited for all before it. It lets the next one begin behind that, so that no more than two
// run at a time: what a third has written could lie, older, in the first cache of a processor. For the same reason what
// kernels write is not read by ld.global.nc (__ldg), and weights are not because ptxas would move such loads behind the
// wait. Code for architectures before 9.0 is launched as usual.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace computron::kernels::cuda {

// Until the kernel before this one has ended and what it wrote can be read.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Its blocks are launched as soon as all of this one have said so, and wait for this one's end.
__device__ inline void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Of a kernel that reads no weights.
__device__ inline void begin_overlapped() {
  wait_for_previous_kernel();
  let_next_kernel_begin();
}

// Whether the code that this device runs waits, which depends on what it was compiled for: of all kernels alike.
inline bool can_overlap(const void* kernel) {
  static const bool can = [kernel] {
    cudaFuncAttributes of{};
    return cudaFuncGetAttributes(&of, kernel) == cudaSuccess && of.ptxVersion >= 90;
  }();
  return can;
}

// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), of which the next such kernel need not see the end.
// Errors are the runtime's last error, as of any launch.
template <class... Parameters, class... Arguments>
void launch_overlapped(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                       void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace computron::kernels::cuda
