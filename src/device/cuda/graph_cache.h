// CUDA graphs of capturable work: what launches cost the host, some microseconds each, is paid once.
//
// The key of a graph is the work itself. A *dry record* calls the work with a stream that launches nothing: operations
// prepare what they upload, and every launch and copy adds its parameters to a LaunchRecord. A graph is launched only
// where the dry record equals, byte for byte, the record that was taken while the graph was captured. Every pointer and
// every number that a kernel is told is a part of that comparison, so a graph is never launched after the placement of
// pages, the batch or scratch memory has changed what the work would do.
//
//   first time     dry record, then launched as it is
//   second time    dry record, then captured, and launched if the capture's record equals the dry one
//   from then on   dry record, then the graph
//
// Work whose dry record shows that it waits for something is launched as it is, every time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>

namespace computron {

// What work launches: the parameters of every launch and copy, in order, as bytes without padding.
class LaunchRecord {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    T bare = value;
    clear_padding(bare);
    bytes_.append(reinterpret_cast<const char*>(&bare), sizeof bare);
  }
  template <class T>
  void add(std::span<T> values) {
    add(values.size());
    for (const T& value : values) add(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  // Where the compiler cannot do that, equal work may look different; it is then launched as it is. GCC 12 leaves what
  // lies behind the last member of a struct that has an array of structs in it (tried), so such a member comes last.
  template <class T>
  static void clear_padding([[maybe_unused]] T& value) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&value);
#endif
#endif
  }

  std::string bytes_;
};

// At most kMaxGraphs records are remembered; the one that was seen longest ago goes first. Belongs to the thread of its
// stream.
class GraphCache {
 public:
  // Launches the graph of `record` on `stream`, if there is one; whether there was.
  bool launch(const LaunchRecord& record, cudaStream_t stream);
  // Remembers `record`. True from the second time on, when a capture is worth its cost; false where an earlier capture
  // of it was not reproducible, and where no more graphs are made.
  bool note(const LaunchRecord& record);
  // Captures what `work` launches on `stream`, and launches the graph. `work` returns the record of what it launched.
  // False, and nothing has been launched, where that differs from `record`, or where device memory has no room for
  // another graph: from then on no more graphs are made. Error{kDevice} otherwise.
  bool capture(const LaunchRecord& record, cudaStream_t stream, const std::function<LaunchRecord()>& work);

  std::uint64_t launches() const { return launches_; }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const;
  };
  struct Entry {
    std::unique_ptr<CUgraphExec_st, Destroy> graph;  // null: noted, not captured
    std::uint64_t last_seen = 0;                     // of clock_
    bool reproducible = true;                        // no capture of it has launched anything else
  };
  void evict_oldest();
  void stop_capturing();

  std::unordered_map<std::string, Entry> entries_;  // by LaunchRecord::bytes()
  std::uint64_t clock_ = 0;                         // counts what was noted or launched
  std::uint64_t launches_ = 0;
  bool captures_ = true;
};

}  // namespace computron
