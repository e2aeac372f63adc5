// Move-only owners of the runtime's streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace computron {

struct CudaStreamDeleter {
  void operator()(cudaStream_t stream) const;
};
struct CudaEventDeleter {
  void operator()(cudaEvent_t event) const;
};
using CudaStreamHandle = std::unique_ptr<CUstream_st, CudaStreamDeleter>;
using CudaEventHandle = std::unique_ptr<CUevent_st, CudaEventDeleter>;

// On the current device. The stream does not wait for the default one.
CudaStreamHandle make_cuda_stream();
// The same; its kernels go before those of other streams that wait for a multiprocessor.
CudaStreamHandle make_urgent_cuda_stream();
CudaEventHandle make_cuda_event(unsigned flags);

// Whether what `status`, of a query, tells of has happened; throws unless it is known.
bool is_over(cudaError_t status, const char* call);

}  // namespace computron
