#include "src/device/cuda/cuda_handles.h"

#include "src/device/cuda/cuda_check.h"

namespace computron {

void CudaStreamDeleter::operator()(cudaStream_t stream) const { COMPUTRON_CUDA_LOG(cudaStreamDestroy(stream)); }
void CudaEventDeleter::operator()(cudaEvent_t event) const { COMPUTRON_CUDA_LOG(cudaEventDestroy(event)); }

CudaStreamHandle make_cuda_stream() {
  cudaStream_t stream = nullptr;
  COMPUTRON_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return CudaStreamHandle(stream);
}

CudaStreamHandle make_urgent_cuda_stream() {
  int least = 0, greatest = 0;
  COMPUTRON_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  COMPUTRON_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return CudaStreamHandle(stream);
}

CudaEventHandle make_cuda_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  COMPUTRON_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return CudaEventHandle(event);
}

bool is_over(cudaError_t status, const char* call) {
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // or the next check of a launch would find it
    return false;
  }
  check_cuda(status, call);
  return true;
}

}  // namespace computron
