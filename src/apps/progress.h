// How far a long pass over a file has come, on stderr: a line that rewrites itself on a terminal, a line every few
// seconds elsewhere, nothing for what is over in two seconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace computron {

class ByteProgress {
 public:
  ByteProgress(std::string what, std::size_t total_bytes);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  void add(std::size_t bytes) { done_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  double elapsed_s() const;

 private:
  void report(const std::stop_token& stop);
  void print() const;

  const std::string what_;
  const std::size_t total_bytes_;
  const double start_s_;
  const bool terminal_;
  bool printed_ = false;  // of the reporter
  std::atomic<std::size_t> done_bytes_{0};
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread reporter_;
};

}  // namespace computron
