// Activations between neighbouring stages: rank (stage, t) sends to rank (stage + 1, t), float32.
#pragma once

#include <memory>
#include <vector>

#include "computron/base/trace.h"
#include "computron/comm/mesh.h"
#include "computron/device/device.h"

namespace computron {

class StageTransfer {
 public:
  // Borrows all; `trace` may be null. Sends at most `max_count` floats at a time and holds `buffers` of them, so that
  // `buffers` transfers may be on their way while the stage computes on.
  StageTransfer(const Mesh& mesh, Progress& progress, std::size_t max_count, int buffers, Trace* trace = nullptr);

  // To the next stage: `data` is free again when the stream has run this.
  void send(Stream& stream, const float* data, std::size_t count);
  // From the stage before: `data` is filled when the stream has run this. In the order of sends.
  void receive(Stream& stream, float* data, std::size_t count);
  // Seconds that this rank has stood still so far until what it was to receive had come.
  double waited_s() const { return waited_s_; }
  // Tests the sends on their way; call it from the progress hook.
  void poll();

 private:
  const Mesh& mesh_;
  Progress& progress_;
  Trace* trace_;
  struct Outgoing {
    std::vector<float> data;
    MessageRequest request;
  };
  std::vector<Outgoing> outgoing_;
  std::size_t next_ = 0;
  double waited_s_ = 0;
};

}  // namespace computron
