// Sums and transfers from device to device.
#include <fmt/format.h>

#include <vector>

#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/comm/communicators.h"
#include "src/comm/cuda/nccl_world.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {
namespace {

class NcclAllReduce final : public AllReduce {
 public:
  NcclAllReduce(std::shared_ptr<NcclWorld> world, Trace* trace) : world_(std::move(world)), trace_(trace) {}
  ~NcclAllReduce() override { world_->before_abort({}); }

  void sum(Stream& stream, float* data, std::size_t count) override {
    if (count == 0) return;
    const TraceSpan span(trace_, TraceTrack::kCommunication, "give all-reduce", {}, {"bytes", count * sizeof(float)});
    const cudaStream_t on = cuda(stream);
    const auto operation = [&] { return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, world_->tensor(), on); };
    if (cuda_compute(stream).is_capturing()) {
      world_->capture(world_->tensor(), "ncclAllReduce", operation);
    } else {
      world_->enqueue(world_->tensor(), on, world_->compute_watch(), "ncclAllReduce", operation);
    }
  }
  bool is_capturable() const override { return true; }
  void before_abort(const std::function<void()>& drop_graphs) override { world_->before_abort(drop_graphs); }
  void watch_graph(Stream& stream) override { world_->compute_watch().add(cuda(stream)); }

 private:
  std::shared_ptr<NcclWorld> world_;
  Trace* trace_;
};

// Sends leave from buffers of their own on a stream of their own, so that the stage computes on while the next one is
// still busy:
//
//   compute stream   layers of n ── copy to buffer ── layers of n + 1 ...
//   send stream                                    └─ send n ── (buffer free)
//
// It does so up to the next operation of NCCL, a sum or a receive, which waits for the send: communicators that share
// what they have run their operations in the order given, whatever the stream. So there is one order on all ranks, and
// to abort one communicator frees them all. A short send ends in NCCL's own buffers and waits for nobody.
//
// What is received is waited for by the host, which knows then how long; the stage has nothing else to compute.
class NcclStageTransfer final : public StageTransfer {
 public:
  NcclStageTransfer(const Mesh& mesh, Device& device, Progress& progress, const CommunicatorSizes& sizes,
                    std::shared_ptr<NcclWorld> world, Trace* trace)
      : progress_(progress), max_count_(sizes.max_count), world_(std::move(world)), trace_(trace) {
    if (mesh.last_stage()) return;
    send_stream_ = make_cuda_stream();
    for (int i = 0; i < sizes.buffers; ++i) {
      outgoing_.push_back({device.allocate(sizes.max_count * sizeof(float), "activations on their way"),
                           std::make_unique<CudaEvent>(), std::make_unique<CudaEvent>()});
    }
  }

  void send(Stream& stream, const float* data, std::size_t count) override {
    ensure(count <= max_count_ && !outgoing_.empty(), "activations larger than the transfer buffers");
    const TraceSpan span(trace_, TraceTrack::kCommunication, "give activation", {}, {"bytes", count * sizeof(float)});
    Outgoing& out = outgoing_[next_++ % outgoing_.size()];
    progress_.wait_until([&] {
      world_->poll();
      return out.sent->query();
    });
    stream.copy_on_device(out.buffer->data(), reinterpret_cast<const std::byte*>(data), count * sizeof(float));
    stream.record(*out.filled);
    COMPUTRON_CUDA_CHECK(cudaStreamWaitEvent(send_stream_.get(), out.filled->handle(), 0));
    world_->enqueue(world_->with_stage_behind(), send_stream_.get(), world_->send_watch(), "ncclSend", [&] {
      return ncclSend(out.buffer->data(), count, ncclFloat32, /*peer=*/1, world_->with_stage_behind(),
                      send_stream_.get());
    });
    out.sent->record_on(send_stream_.get());
  }

  void receive(Stream& stream, float* data, std::size_t count) override {
    const TraceSpan span(trace_, TraceTrack::kCommunication, "receive activation", {},
                         {"bytes", count * sizeof(float)});
    const double begin_s = now_s();
    const cudaStream_t on = cuda(stream);
    world_->enqueue(world_->with_stage_before(), on, world_->compute_watch(), "ncclRecv",
                    [&] { return ncclRecv(data, count, ncclFloat32, /*peer=*/0, world_->with_stage_before(), on); });
    world_->finish(world_->compute_watch());
    waited_s_ += now_s() - begin_s;
  }

  double waited_s() const override { return waited_s_; }
  void poll() override { world_->poll(); }

 private:
  struct Outgoing {
    std::unique_ptr<DeviceBuffer> buffer;
    std::unique_ptr<CudaEvent> filled, sent;
  };

  Progress& progress_;
  std::size_t max_count_;
  CudaStreamHandle send_stream_;
  std::vector<Outgoing> outgoing_;
  // Behind the buffers and the stream: goes before them, and what is still under way with it.
  std::shared_ptr<NcclWorld> world_;
  Trace* trace_;
  std::size_t next_ = 0;
  double waited_s_ = 0;
};

}  // namespace

Communicators make_nccl_communicators(const Mesh& mesh, Device& device, Progress& progress,
                                      const CommunicatorSizes& sizes, Trace* trace) {
  auto world = std::make_shared<NcclWorld>(mesh, device, progress);
  Communicators communicators;
  agreed(mesh.group, [&] {
    communicators.transfer = std::make_unique<NcclStageTransfer>(mesh, device, progress, sizes, world, trace);
    communicators.all_reduce =
        mesh.shape.tp > 1 ? std::make_unique<NcclAllReduce>(world, trace) : make_local_all_reduce();
  });
  return communicators;
}

bool direct_transport_present() noexcept { return true; }

std::string direct_transport_library() {
  int number = 0;  // 22809: 2.28.9
  if (ncclGetVersion(&number) != ncclSuccess) return "NCCL";
  return fmt::format("NCCL {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace computron
