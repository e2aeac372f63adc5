#include "computron/comm/stage_transfer.h"

#include <algorithm>

#include "computron/base/time.h"
#include "computron/comm/tags.h"
#include "computron/device/cpu/cpu_stream.h"

namespace computron {

StageTransfer::StageTransfer(const Mesh& mesh, Progress& progress, std::size_t max_count, int buffers, Trace* trace)
    : mesh_(mesh), progress_(progress), trace_(trace), outgoing_(mesh.last_stage() ? 0 : buffers) {
  for (Outgoing& out : outgoing_) out.data.resize(max_count);
}

void StageTransfer::send(Stream& stream, const float* data, std::size_t count) {
  cpu(stream).launch([this, data, count](CpuContext&) {
    const TraceSpan span(trace_, TraceTrack::kCommunication, "send activation", {}, {"bytes", count * sizeof(float)});
    Outgoing& out = outgoing_[next_++ % outgoing_.size()];
    ensure(count <= out.data.size(), "activations larger than the transfer buffers");
    progress_.wait_until([&out] { return out.request.done(); });
    std::copy_n(data, count, out.data.data());
    out.request = mesh_.world.send(std::as_bytes(std::span(out.data).first(count)),
                                   mesh_.shape.rank_of(mesh_.stage + 1, mesh_.t), tags::kActivation);
  });
}

void StageTransfer::receive(Stream& stream, float* data, std::size_t count) {
  cpu(stream).launch([this, data, count](CpuContext&) {
    const std::size_t bytes = count * sizeof(float);
    const TraceSpan span(trace_, TraceTrack::kCommunication, "receive activation", {}, {"bytes", bytes});
    const double begin_s = now_s();
    MessageRequest request = mesh_.world.receive(std::as_writable_bytes(std::span(data, count)),
                                                 mesh_.shape.rank_of(mesh_.stage - 1, mesh_.t), tags::kActivation);
    progress_.wait_until([&request] { return request.done(); });
    waited_s_ += now_s() - begin_s;
    ensure(request.received_bytes() == bytes, "activations of another size than the step says");
  });
}

void StageTransfer::poll() {
  for (Outgoing& out : outgoing_) out.request.done();
}

}  // namespace computron
