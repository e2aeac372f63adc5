// The communicators of a rank: what carries numbers between the devices of the ranks, as sums over the tensor-parallel
// ranks of a stage and as activations from stage to stage. (A Communicator, mpi.h, carries bytes of host memory.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "computron/comm/all_reduce.h"
#include "computron/comm/stage_transfer.h"

namespace computron {

enum class TransportKind : std::uint8_t {
  kHost,    // the CPU device: MPI reads and writes its memory
  kStaged,  // any device: through host memory, which MPI reads and writes. The compute stream is synchronized for it
  kDirect,  // from device to device, on their streams (NCCL)
};

struct CommunicatorSizes {
  std::size_t max_count = 0;  // floats of the longest sum or activation
  int buffers = 1;            // activations that may be in flight while the stage computes on
};

// kHost and kStaged add in the same order (all_reduce.h). kDirect adds in an order of its own, which depends on the
// count and on how the devices are connected, and is the same in every run.
struct Communicators {
  std::unique_ptr<StageTransfer> transfer;  // destroyed last: what the two share goes before the transfer's buffers
  std::unique_ptr<AllReduce> all_reduce;
};

// Collective: fails on all ranks or on none (VoteError). Borrows all; `trace` may be null. NotCompiled for kDirect in a
// build without it.
Communicators make_communicators(TransportKind kind, const Mesh& mesh, Device& device, Progress& progress,
                                 const CommunicatorSizes& sizes, Trace* trace = nullptr);

// Whether this build has kDirect, and its library: "NCCL 2.28.9", empty without.
bool direct_transport_present() noexcept;
std::string direct_transport_library();
// kDirect. Collective, as make_communicators().
Communicators make_nccl_communicators(const Mesh& mesh, Device& device, Progress& progress,
                                      const CommunicatorSizes& sizes, Trace* trace);

}  // namespace computron
