#include "computron/comm/stage_transfer.h"

#include <algorithm>
#include <vector>

#include "computron/base/time.h"
#include "computron/comm/tags.h"
#include "computron/device/cpu/cpu_stream.h"

namespace computron {
namespace {

class MpiStageTransfer final : public StageTransfer {
 public:
  MpiStageTransfer(const Mesh& mesh, Progress& progress, std::size_t max_count, int buffers, Trace* trace)
      : mesh_(mesh), progress_(progress), trace_(trace), outgoing_(mesh.last_stage() ? 0 : buffers) {
    for (Outgoing& out : outgoing_) out.data.resize(max_count);
  }

  void send(Stream& stream, const float* data, std::size_t count) override {
    cpu(stream).launch([this, data, count](CpuContext&) { send_now(data, count); });
  }
  void receive(Stream& stream, float* data, std::size_t count) override {
    cpu(stream).launch([this, data, count](CpuContext&) { receive_now(data, count); });
  }
  double waited_s() const override { return waited_s_; }
  void poll() override {
    for (Outgoing& out : outgoing_) out.request.done();
  }

 private:
  struct Outgoing {
    std::vector<float> data;
    MessageRequest request;
  };

  void send_now(const float* data, std::size_t count) {
    const TraceSpan span(trace_, TraceTrack::kCommunication, "send activation", {}, {"bytes", count * sizeof(float)});
    Outgoing& out = outgoing_[next_++ % outgoing_.size()];
    ensure(count <= out.data.size(), "activations larger than the transfer buffers");
    progress_.wait_until([&out] { return out.request.done(); });
    std::copy_n(data, count, out.data.data());
    out.request = mesh_.group.send(std::as_bytes(std::span(out.data).first(count)),
                                   mesh_.shape.rank_of(mesh_.stage + 1, mesh_.t), tags::kActivation);
  }

  void receive_now(float* data, std::size_t count) {
    const std::size_t bytes = count * sizeof(float);
    const TraceSpan span(trace_, TraceTrack::kCommunication, "receive activation", {}, {"bytes", bytes});
    const double begin_s = now_s();
    MessageRequest request = mesh_.group.receive(std::as_writable_bytes(std::span(data, count)),
                                                 mesh_.shape.rank_of(mesh_.stage - 1, mesh_.t), tags::kActivation);
    progress_.wait_until([&request] { return request.done(); });
    waited_s_ += now_s() - begin_s;
    ensure(request.received_bytes() == bytes, "activations of another size than the step says");
  }

  const Mesh& mesh_;
  Progress& progress_;
  Trace* trace_;
  std::vector<Outgoing> outgoing_;
  std::size_t next_ = 0;
  double waited_s_ = 0;
};

}  // namespace

std::unique_ptr<StageTransfer> make_mpi_stage_transfer(const Mesh& mesh, Progress& progress, std::size_t max_count,
                                                       int buffers, Trace* trace) {
  return std::make_unique<MpiStageTransfer>(mesh, progress, max_count, buffers, trace);
}

}  // namespace computron
