// The emulated GPU: the parts of the CUDA runtime, cuBLASLt and NCCL that the product calls, on the CPU, linked in
// front of the libraries' own. What CUDA allows to happen late happens late here; what it forbids, or leaves undefined,
// ends the process with a line that says so, or is the error that CUDA would return; memory that it leaves undefined is
// all 0xFF. Its parts:
//
//   runtime.cpp, stream.cpp   memory, streams and events of the runtime: a thread a stream
//   cublaslt.cpp, nccl.cpp    those libraries' products and sums, as work of a stream
//   block.h, language.h       kernels as C++, a fiber for each thread of a block (CMakeLists.txt)
//
// This header is what they share. Everything in it may be called by any thread.
//
//   COMPUTRON_EMULATED_MEMORY       bytes of device memory (4 GiB)
//   COMPUTRON_EMULATED_SHARED_MEMORY  bytes of shared memory that a block may ask for (232448, as on architecture 9.0)
//   COMPUTRON_EMULATED_DELAY_US     how late an operation begins at most (100; 0: never)
//   COMPUTRON_EMULATED_GRAPHS       graphs that there is room for (any number)
//   COMPUTRON_EMULATED_PINNED_ONLY  1: a copy of host memory that is not registered ends the process (0)
//   COMPUTRON_EMULATED_ENGINE_BUSY  1: a copy up that a stream of kernels gives the engine ends the process (0)
//   COMPUTRON_EMULATED_FLIP         COPY[:TIMES[:...]]: a bit of what that copy up of registered memory brings is
//   another, of
//                                   those on streams without kernels, counted from 0 when this was set; twice: also
//                                   when a kernel then reads that page of host memory with __ldcv (none)
//   COMPUTRON_EMULATED_CONNECT      0: a sum or transfer that would have to connect ranks first ends the process (1)
//   COMPUTRON_EMULATED_NCCL_FAILS   this rank's calls of that name fail (ncclCommInitRankConfig, ncclCommSplit,
//                                   ncclAllReduce), and NCCL tells the other ranks nothing of it (none)
//   COMPUTRON_EMULATED_CUBLASLT_REFUSES   products that the chosen algorithm refuses: cublaslt.cpp (none)
//   COMPUTRON_EMULATED_REPORT       1: figures on stderr when the process ends (0)
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace computron::emulated_gpu {

// Work of a stream: runs on the stream's thread, after everything given to it before, and some time later than it
// could.
void enqueue(cudaStream_t stream, std::function<void()> work);
// The same of work that is another one each time it is given: make(in_graph) is called when it is given, or, while the
// stream captures, at every launch of the graph.
using MakeWork = std::function<std::function<void()>(bool in_graph)>;
void enqueue_made(cudaStream_t stream, const MakeWork& make);
// Returns when everything given to any stream has run; streams that were destroyed meanwhile count, too.
void wait_for_all_streams();
// Returns when everything given to `stream` has run.
void wait_for(cudaStream_t stream);

// What cudaGetLastError() tells (and clears) on this thread: refused launches leave it here.
void set_last_error(cudaError_t error);
// `error`, left as the last one unless it is cudaSuccess: what functions of the runtime return.
cudaError_t told(cudaError_t error);
// Ends the process: the product did what CUDA forbids.
[[noreturn]] void refuse(const std::string& what);

// A load of a GPU fails where it is not aligned ("misaligned address"), one of a CPU is only slow.
inline void check_aligned(const void* p, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(p) % bytes != 0) refuse("a kernel reads or copies at a misaligned address");
}

// True if [p, p + bytes) lies in one allocation of device memory (or one registered host slab).
bool is_device_memory(const void* p, std::size_t bytes);
bool is_pinned_memory(const void* p, std::size_t bytes);

// To be called with what a kernel has read at `p` of host memory: COMPUTRON_EMULATED_FLIP.
void damage_read(const void* p, std::span<std::byte> value);

// Whether `stream` has been given a kernel, which is noted.
void note_kernel(cudaStream_t stream);
bool runs_kernels(cudaStream_t stream);

// Whether what is given to `stream` is kept for a graph.
bool captures(cudaStream_t stream);

// Bytes of shared memory that a block may have where its kernel asks for them: 99, 163 or 227 KiB on real GPUs.
std::size_t most_shared();

// Calls of the process that gave a stream something: a launch, a copy, a graph, an event to record or to wait for.
extern "C" std::uint64_t computron_emulated_calls();

// A number from the environment.
std::uint64_t setting(const char* name, std::uint64_t otherwise);

}  // namespace computron::emulated_gpu
