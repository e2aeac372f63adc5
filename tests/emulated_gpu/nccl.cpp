// NCCL's functions, for ranks that are processes of one machine: as many as src/comm/cuda calls.
#include <fmt/format.h>
#include <nccl.h>

#include <cstring>

#include "tests/emulated_gpu/nccl_communicator.h"

using computron::emulated_gpu::Communicator;
using computron::emulated_gpu::give_up;
using computron::emulated_gpu::last_nccl_error;
using computron::emulated_gpu::Operation;
using computron::emulated_gpu::OperationKind;
using computron::emulated_gpu::set_last_nccl_error;

// Never freed, so that a call with a communicator that has been taken down is noticed.
struct ncclComm {
  std::shared_ptr<Communicator> communicator;
};

namespace {

ncclComm_t handle_of(std::shared_ptr<Communicator> communicator) {
  static std::mutex lock;
  static auto& all = *new std::vector<std::unique_ptr<ncclComm>>;
  const std::lock_guard locked(lock);
  all.push_back(std::make_unique<ncclComm>(std::move(communicator)));
  return all.back().get();
}

ncclResult_t refuse(const std::string& why, ncclResult_t status = ncclInvalidArgument) {
  set_last_nccl_error(why);
  return status;
}

// Runs `act` with what `comm` stands for.
template <class Act>
ncclResult_t with(ncclComm_t comm, const char* call, Act&& act) {
  if (comm == nullptr) return refuse(fmt::format("{}: no communicator", call));
  if (comm->communicator == nullptr) {
    give_up(fmt::format("{} of a communicator that has been destroyed or aborted", call));
  }
  return act(*comm->communicator);
}

bool initialized(const ncclConfig_t& config) {
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  return config.size == fresh.size && config.magic == fresh.magic && config.version == fresh.version;
}

Communicator::Options options_of(const ncclConfig_t* config) {
  if (config == nullptr) return {.blocking = true, .share = false};
  return {.blocking = config->blocking != 0, .share = config->splitShare == 1};
}

ncclResult_t give(ncclComm_t comm, const char* call, ncclDataType_t type, const Operation& operation,
                  cudaStream_t stream) {
  if (type != ncclFloat32) give_up(fmt::format("{}: only float32 is emulated", call));
  return with(comm, call, [&](Communicator& communicator) { return communicator.give(operation, stream); });
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[ncclNumResults] = {"no error",
                                                         "unhandled cuda error",
                                                         "unhandled system error",
                                                         "internal error",
                                                         "invalid argument",
                                                         "invalid usage",
                                                         "remote process exited or there was a network error",
                                                         "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_nccl_error(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  computron::emulated_gpu::sweep_segment_names();
  const std::string name = computron::emulated_gpu::new_segment_name();
  *id = {};
  std::memcpy(id->internal, name.c_str(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (config != nullptr && !initialized(*config)) return refuse("ncclConfig_t without NCCL_CONFIG_INITIALIZER");
  if (ranks < 1 || ranks > computron::emulated_gpu::kMaxRanks || rank < 0 || rank >= ranks) {
    return refuse(fmt::format("Invalid rank requested : {}/{}", rank, ranks));
  }
  auto communicator = std::make_shared<Communicator>(Communicator::Place{id.internal, rank, ranks}, options_of(config),
                                                     std::make_shared<computron::emulated_gpu::Family>());
  *comm = handle_of(communicator);
  return communicator->init();
}

// *child is null until the split is over.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  if (config != nullptr && !initialized(*config)) return refuse("ncclConfig_t without NCCL_CONFIG_INITIALIZER");
  return with(comm, "ncclCommSplit", [&](Communicator& communicator) {
    const Communicator::Options options = config != nullptr ? options_of(config) : communicator.options();
    *child = nullptr;
    return communicator.split(color, key, &options, [child](std::shared_ptr<Communicator> made) {
      if (made != nullptr) *child = handle_of(std::move(made));
    });
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return with(comm, "ncclCommGetAsyncError", [&](Communicator& communicator) {
    *error = communicator.state();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return with(comm, "ncclCommFinalize", [](Communicator& communicator) { return communicator.finalize(); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return with(comm, "ncclCommDestroy", [&](Communicator& communicator) {
    const ncclResult_t status = communicator.destroy();
    if (status == ncclSuccess) comm->communicator = nullptr;
    return status;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  return with(comm, "ncclCommAbort", [&](Communicator& communicator) {
    const ncclResult_t status = communicator.abort();
    comm->communicator = nullptr;
    return status;
  });
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) give_up("ncclAllReduce: only ncclSum is emulated");
  return give(comm, "ncclAllReduce", type,
              {OperationKind::kSum, static_cast<const float*>(in), static_cast<float*>(out), count, /*peer=*/0},
              stream);
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return give(comm, "ncclSend", type, {OperationKind::kSend, static_cast<const float*>(in), nullptr, count, peer},
              stream);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return give(comm, "ncclRecv", type, {OperationKind::kReceive, nullptr, static_cast<float*>(out), count, peer},
              stream);
}

}  // extern "C"
