// The checks of CUDA runtime calls, for the sources under src/device/cuda.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "computron/base/error.h"
#include "computron/base/log.h"

namespace computron {

// CUDA errors are sticky: what fails once fails for good, and ends the job.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ExitCode::kDevice,
              fmt::format("cuda: {}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

// For destructors. Once: behind a sticky error every one of thousands would say the same.
inline void log_cuda(cudaError_t status, const char* call) {
  static bool said = false;
  if (status == cudaSuccess || said) return;
  said = true;
  spdlog::warn("cuda: {}: {}; more of the kind is not reported", call, cudaGetErrorString(status));
}

}  // namespace computron

#define COMPUTRON_CUDA_CHECK(call) ::computron::check_cuda((call), #call)
#define COMPUTRON_CUDA_LOG(call) ::computron::log_cuda((call), #call)
