// kernels/cuda/overlap.cuh where the kernels of a stream run one after the other. That every thread waits is counted.
#pragma once

#include "computron/base/error.h"
#include "tests/emulated_gpu/block.h"
#include "tests/emulated_gpu/stream.h"

namespace computron::kernels::cuda {

namespace twin {
inline thread_local std::size_t waits = 0;  // a block at a time runs on a stream's thread
}

inline void let_next_kernel_begin() {}
inline void wait_for_previous_kernel() { ++twin::waits; }
inline void begin_overlapped() { wait_for_previous_kernel(); }

template <class... Parameters, class... Arguments>
void launch_overlapped(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                       void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (!emulated_gpu::fits(grid, block, shared_bytes, reinterpret_cast<const void*>(kernel))) {
    return emulated_gpu::set_last_error(cudaErrorInvalidConfiguration);
  }
  emulated_gpu::note_kernel(stream);
  emulated_gpu::enqueue(stream, [=, values = std::tuple<std::remove_cv_t<Parameters>...>(arguments...)] {
    twin::waits = 0;
    emulated_gpu::run_grid(grid, block, shared_bytes, [&] { std::apply(kernel, values); });
    const std::size_t threads = std::size_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
    ensure(twin::waits == threads, "a thread of an overlapped kernel has not waited, or has waited twice");
  });
}

}  // namespace computron::kernels::cuda
