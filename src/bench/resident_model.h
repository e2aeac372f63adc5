// A model on one rank with all its pages in device memory, and forward passes of it as serving runs them: for
// benchmarks of computing alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/model/transformer.h"
#include "computron/runtime/kv_geometry.h"

namespace computron {

class ResidentModel {
 public:
  // Room for passes of `max_rows` rows and, in the cache, for `sequences` sequences of `tokens` tokens or for one of
  // `prompt`. The cache is filled with random numbers of moderate size. `device`: "cpu", of so many threads, or "cuda".
  // CheckpointError, ConfigError, OutOfDeviceMemory, NotCompiled.
  ResidentModel(const std::string& file, const std::string& device, int threads, int max_rows, int sequences,
                int tokens, int prompt);

  const ModelConfig& config() const { return layout_.plan.config; }
  Device& device() { return *device_; }
  const ShardLayout& layout() const { return layout_; }
  Ops& ops() { return *ops_; }
  Stream& stream() { return *stream_; }

  // `rows` tokens of each of `sequences` sequences that have `start` before them; logits of each one's last.
  Batch batch(int sequences, int start, int rows) const;
  struct PassTimes {
    double pass_s;
    double prepare_s;  // of it, until the first launch: the pass's arrays, and which graph it is
    double enqueue_s;  // of it, until the host had nothing left but to wait for the device
  };
  // A pass through `ops`, which is ops() or a probe of it.
  PassTimes run_pass(Ops& ops, const Batch& batch);
  // Bytes a second of reading all pages with all threads, each byte once and in order. Of a device with memory of its
  // own: of copying within it, bytes read and bytes written counted.
  double plain_read_bytes_per_s();
  // Device memory full of random numbers of moderate size, the same each time, in any plain type.
  std::unique_ptr<DeviceBuffer> filled(std::size_t bytes, std::string_view what);
  // Bytes of keys and values that a pass of such a batch reads.
  double cache_bytes(const Batch& batch) const;

 private:
  class Frames;

  void load(const CheckpointIndex& index);
  void make_cache(int sequences, int tokens, int prompt);
  double read_by_threads_s();
  double copy_on_device_s();

  Progress progress_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  ShardLayout layout_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeviceBuffer> frames_;  // page p at p × page_bytes
  std::unique_ptr<DeviceBuffer> cache_;
  std::unique_ptr<DeviceBuffer> copied_;  // from one half to the other, for the plain rate of a device
  KvGeometry geometry_;
  std::vector<FrameId> cache_frames_;
  std::vector<std::uint32_t> blocks_;  // [sequence][block]
  int blocks_a_sequence_ = 0;
  std::unique_ptr<Workspace> work_;
  std::unique_ptr<AllReduce> all_reduce_;
  std::optional<Transformer> transformer_;
};

}  // namespace computron
