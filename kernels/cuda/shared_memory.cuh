// Shared memory beyond the 48 KiB that every kernel may have: a kernel asks for it, and GPUs have different amounts.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "computron/base/error.h"

namespace computron::kernels::cuda {

// Bytes, static ones included, that a block may have on every GPU from architecture 8.0 on (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability"): 99 KiB on 8.6, 8.9 and 12.0, 163 KiB on 8.0 and 227 KiB on 9.0.
// A kernel that needs more is one of several, of which the plan chooses what fits.
inline constexpr int kLeastSharedBytes = 99 << 10;

// Lets blocks of `kernel` have `bytes` of dynamic shared memory; to be called once, before its first launch. `name` is
// what an error calls it: Error{kDevice}, where this device's blocks may not have as much. Returns true, so that a
// static constant can be made of the call.
template <class... Parameters>
bool ask_for_shared(void (*kernel)(Parameters...), const char* name, int bytes) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // told here
  throw Error(ExitCode::kDevice, std::string("cuda: ") + name + ": " + std::to_string(bytes) +
                                     " bytes of shared memory for a block: " + cudaGetErrorString(status) + " (" +
                                     cudaGetErrorName(status) + ")");
}

}  // namespace computron::kernels::cuda
