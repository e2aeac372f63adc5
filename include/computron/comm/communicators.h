// What carries numbers between the devices of the ranks: sums over a stage, and activations from stage to stage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "computron/comm/all_reduce.h"
#include "computron/comm/stage_transfer.h"

namespace computron {

enum class TransportKind : std::uint8_t {
  kHost,    // streams of the CPU device: MPI reads and writes their memory
  kStaged,  // of any device: through host memory, which MPI reads and writes. The compute stream is synchronized for it
  kDirect,  // from device to device, on their streams (NCCL)
};

struct CommunicatorSizes {
  std::size_t max_count = 0;  // floats of the longest sum or activation
  int buffers = 1;            // activations that may be on their way while the stage computes on
};

// Sums over ranks have the same order in kHost and kStaged (all_reduce.h); in kDirect they have one of their own, which
// depends on the count and on how the devices are connected, and is the same in every run.
struct Communicators {
  std::unique_ptr<StageTransfer> transfer;  // goes last: what both share goes before its buffers
  std::unique_ptr<AllReduce> all_reduce;
};

// Collective: fails on all ranks or on none (VoteError). Borrows all; `trace` may be null. NotCompiled for kDirect in a
// build without.
Communicators make_communicators(TransportKind kind, const Mesh& mesh, Device& device, Progress& progress,
                                 const CommunicatorSizes& sizes, Trace* trace = nullptr);

// Whether this build has kDirect, and through which library: "NCCL 2.28.9", empty without.
bool direct_transport_present() noexcept;
std::string direct_transport_library();
// kDirect. Collective, as make_communicators().
Communicators make_nccl_communicators(const Mesh& mesh, Device& device, Progress& progress,
                                      const CommunicatorSizes& sizes, Trace* trace);

}  // namespace computron
