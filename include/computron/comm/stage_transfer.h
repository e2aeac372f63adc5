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
  // To the next stage: `data` is free again when the stream has run this.
  virtual void send(Stream& stream, const float* data, std::size_t count) = 0;
  // From the stage before: `data` is filled when the stream has run this. In the order of sends.
  virtual void receive(Stream& stream, float* data, std::size_t count) = 0;
  // Seconds that this rank has stalled so far until what it was to receive had arrived.
  virtual double waited_s() const = 0;
  // Looks after what is on its way; call it from the progress hook. Throws what went wrong there.
  virtual void poll() = 0;
};

// For CPU streams. Borrows all; `trace` may be null. Sends at most `max_count` floats at a time and holds `buffers` of
// them, so that `buffers` transfers may be on their way while the stage computes on.
std::unique_ptr<StageTransfer> make_mpi_stage_transfer(const Mesh& mesh, Progress& progress, std::size_t max_count,
                                                       int buffers, Trace* trace = nullptr);

}  // namespace computron
