#include "src/comm/staged.h"

#include "computron/base/error.h"

namespace computron {
namespace {

// Host memory that the device copies from and to at the host link's rate, as floats.
class HostFloats {
 public:
  HostFloats(Device& device, std::size_t count)
      : buffer_(device.allocate_host(count * sizeof(float), "sums and activations on their way")), count_(count) {}

  float* data() const { return reinterpret_cast<float*>(buffer_->data()); }
  // Copies `from` in device memory to data(), which is filled when this returns.
  void download(Stream& stream, const float* from, std::size_t count) {
    check(count);
    stream.copy_to_host(buffer_->data(), reinterpret_cast<const std::byte*>(from), count * sizeof(float));
    stream.synchronize();
  }
  // Enqueues a copy of data() to device memory; data() may be overwritten when the stream has run it.
  void upload(Stream& stream, float* to, std::size_t count) {
    stream.copy_to_device(reinterpret_cast<std::byte*>(to), buffer_->data(), count * sizeof(float));
  }
  void check(std::size_t count) const { ensure(count <= count_, "more floats than the communicators' buffers hold"); }

 private:
  std::unique_ptr<HostBuffer> buffer_;
  std::size_t count_;
};

// A stream of the CPU device, which runs its work at the call, on the calling thread.
class HostStream {
 public:
  explicit HostStream(Progress& progress)
      : device_(make_cpu_device({.threads = 1})), stream_(device_->make_compute_stream(progress)) {}
  Stream& get() { return *stream_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

class StagedAllReduce final : public AllReduce {
 public:
  StagedAllReduce(std::unique_ptr<AllReduce> host, Device& device, Progress& progress, std::size_t max_count)
      : host_(std::move(host)), host_stream_(progress), values_(device, max_count) {}

  void sum(Stream& stream, float* data, std::size_t count) override {
    values_.download(stream, data, count);
    host_->sum(host_stream_.get(), values_.data(), count);
    values_.upload(stream, data, count);
  }

 private:
  std::unique_ptr<AllReduce> host_;
  HostStream host_stream_;
  HostFloats values_;
};

class StagedStageTransfer final : public StageTransfer {
 public:
  StagedStageTransfer(std::unique_ptr<StageTransfer> host, Device& device, Progress& progress, std::size_t max_count)
      : host_(std::move(host)), host_stream_(progress), sent_(device, max_count), received_(device, max_count) {}

  void send(Stream& stream, const float* data, std::size_t count) override {
    sent_.download(stream, data, count);
    host_->send(host_stream_.get(), sent_.data(), count);
  }

  void receive(Stream& stream, float* data, std::size_t count) override {
    received_.check(count);
    stream.synchronize();  // the upload before has read the buffer
    host_->receive(host_stream_.get(), received_.data(), count);
    received_.upload(stream, data, count);
  }

  double waited_s() const override { return host_->waited_s(); }
  void poll() override { host_->poll(); }

 private:
  std::unique_ptr<StageTransfer> host_;
  HostStream host_stream_;
  HostFloats sent_, received_;
};

}  // namespace

std::unique_ptr<AllReduce> make_staged_all_reduce(std::unique_ptr<AllReduce> host, Device& device, Progress& progress,
                                                  std::size_t max_count) {
  return std::make_unique<StagedAllReduce>(std::move(host), device, progress, max_count);
}

std::unique_ptr<StageTransfer> make_staged_stage_transfer(std::unique_ptr<StageTransfer> host, Device& device,
                                                          Progress& progress, std::size_t max_count) {
  return std::make_unique<StagedStageTransfer>(std::move(host), device, progress, max_count);
}

}  // namespace computron
