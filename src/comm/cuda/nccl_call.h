// The checks of NCCL's calls, for the sources under src/comm/cuda.
#pragma once

#include <fmt/format.h>
#include <nccl.h>

#include "computron/base/error.h"

namespace computron {

// What NCCL says of `status`; its last error, of any communicator, is the best hint at the cause.
inline std::string nccl_text(ncclResult_t status) {
  return fmt::format("{} ({})", ncclGetErrorString(status), ncclGetLastError(nullptr));
}

// A call of a communicator that does not block is fine while it is in progress.
inline void check_nccl(ncclResult_t status, const char* call) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw Error(ExitCode::kComm, fmt::format("nccl: {}: {}", call, nccl_text(status)));
}

}  // namespace computron

#define COMPUTRON_NCCL_CHECK(call) ::computron::check_nccl((call), #call)
