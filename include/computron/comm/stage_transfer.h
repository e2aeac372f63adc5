// Activations between neighbouring stages: rank (stage, t) sends to rank (stage + 1, t), float32.
#pragma once

#include <memory>

#include "computron/base/trace.h"
#include "computron/comm/mesh.h"
#include "computron/device/device.h"

namespace computron {

class StageTransfer {
 public:
  virtual ~StageTransfer() = default;
  // Enqueues a transfer of data[0, count), in device memory, to the next stage. `data` may be overwritten by whatever
  // is enqueued behind it.
  virtual void send(Stream& stream, const float* data, std::size_t count) = 0;
  // Enqueues the transfer of data[0, count) from the stage before, in the order of its sends: whatever is enqueued
  // behind it finds `data` filled.
  virtual void receive(Stream& stream, float* data, std::size_t count) = 0;
  // Seconds that this rank has stalled so far until what it was to receive had arrived.
  virtual double waited_s() const = 0;
  // Moves sends in flight along; to be called from the progress hook. Throws the error of one that has failed.
  virtual void poll() = 0;
};

// For CPU streams. Borrows all; `trace` may be null. A transfer has at most `max_count` floats; there are `buffers`
// buffers of that size, so that as many sends may be in flight while the stage computes on.
std::unique_ptr<StageTransfer> make_mpi_stage_transfer(const Mesh& mesh, Progress& progress, std::size_t max_count,
                                                       int buffers, Trace* trace = nullptr);

}  // namespace computron
