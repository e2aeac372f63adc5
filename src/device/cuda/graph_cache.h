// Passes that come again as CUDA graphs: what launches cost the host, some microseconds each, is paid once.
//
// A pass is rehearsed first: its operations prepare what they upload and say what they would give the device, and give
// nothing. If the same was captured before, byte for byte, its graph is launched; every pointer and every number that a
// kernel is told is a part of that comparison, so a graph is never launched after residency, batch or scratch memory
// has changed what the pass would do.
//
//   first time     rehearsed, then given as it is
//   second time    rehearsed, then captured, and launched if the capture gave what the rehearsal said
//   from then on   rehearsed and launched
//
// A pass that turns out to wait for something in its rehearsal is given as it is, every time.
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

// What a rehearsal says would be given: the parameters of every launch and copy, in order.
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
  // Where the compiler cannot, equal passes may look different, and are given as they are.
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

class GraphCache {
 public:
  // Launches what was captured of `work`, if it was.
  bool launch(const LaunchRecord& work, cudaStream_t stream);
  // Notes `work`; true from the second time on: it is worth a capture, unless one has given something else.
  bool note(const LaunchRecord& work);
  // Captures what `give` gives to `stream`, and launches it. `give` returns what it gave. False, and nothing has been
  // launched, where that is not `work`, or where device memory has no room for another graph: then no more are made.
  bool capture(const LaunchRecord& work, cudaStream_t stream, const std::function<LaunchRecord()>& give);

  std::uint64_t launches() const { return launches_; }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const;
  };
  struct Entry {
    std::unique_ptr<CUgraphExec_st, Destroy> graph;  // null: seen, not captured
    std::uint64_t last_seen = 0;
    bool reproducible = true;
  };
  void evict_oldest();
  void stop_capturing();

  std::unordered_map<std::string, Entry> entries_;
  std::uint64_t clock_ = 0, launches_ = 0;
  bool captures_ = true;
};

}  // namespace computron
