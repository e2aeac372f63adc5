// The seam between the parts of the emulated GPU: streams, and what lies where. The header to read first:
//
//   runtime.cpp, stream.cpp   memory, streams and events of CUDA's runtime: a thread a stream, which does everything late
//   cublaslt.cpp, nccl.cpp    those libraries' products and sums, as work of a stream
//   block.h, language.h       kernels as C++, a fiber for each thread of a block
//
// Their definitions stand instead of those in the real libraries (CMakeLists.txt). They are adversarial: what CUDA lets
// happen late happens late, memory that it leaves undefined is filled with 0xFF, and what it forbids is reported at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace computron::emulated_gpu {

// Work of a stream: runs on the stream's thread, after everything given to it before.
void enqueue(cudaStream_t stream, std::function<void()> work);

// What cudaGetLastError() tells (and clears) on this thread: refused launches leave it here.
void set_last_error(cudaError_t error);

// True if [p, p + bytes) lies in one allocation of device memory, or in one registered slab of host memory.
bool is_device_memory(const void* p, std::size_t bytes);
bool is_pinned_memory(const void* p, std::size_t bytes);

}  // namespace computron::emulated_gpu
