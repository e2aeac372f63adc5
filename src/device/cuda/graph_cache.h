// CUDA graphs of capturable work: what launches cost the host, some microseconds each, is paid once.
//
//   first time that a key is seen    the work is launched as it is
//   second time                      it is captured, and launched as a graph
//   from then on                     the graph is launched; the work is not called
//
// A graph holds every launch with its parameters. They follow from the key, since whatever else changes from call to
// call lies in device memory, which kernels read (src/ops/cuda/pass_block.h). Which of the three it is follows from the
// sequence of keys alone, so ranks that see the same sequence capture and launch in the same calls. Where one of them
// has no memory for a graph, all of them go without.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "computron/device/device.h"

namespace computron {

// At most kMaxGraphs keys are remembered; the one that was seen longest ago goes first. Belongs to the thread of its
// stream.
class GraphCache {
 public:
  enum class Course : std::uint8_t { kPlain, kCapture, kReplay };

  // Remembers `key`, and says what is to be done with its work.
  Course next(const std::string& key);
  // Launches the graph of `key`, for which next() has said kReplay.
  void launch(const std::string& key, cudaStream_t stream);
  // Captures what `work` launches on `stream` as the graph of `key`. False where device memory has no room for it on
  // one of the ranks: from then on every key is kPlain. Error{kDevice} otherwise. Launches nothing.
  bool capture(const std::string& key, cudaStream_t stream, const std::function<void()>& work, const Agreement& agree);
  void drop();

  std::uint64_t launches() const { return launches_; }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const;
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Destroy>;
  struct Entry {
    Graph graph;                  // null: seen, not captured
    std::uint64_t last_seen = 0;  // of clock_
  };
  // Null where there is no memory for it.
  static Graph make_ready(cudaGraph_t graph, cudaStream_t stream);
  void stop_capturing();
  void evict_oldest();

  std::unordered_map<std::string, Entry> entries_;  // by key
  std::uint64_t clock_ = 0;
  std::uint64_t launches_ = 0;
  bool captures_ = true;
};

}  // namespace computron
