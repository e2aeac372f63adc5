// The compute threads of a rank: fork, take items from a shared counter, join. A round is one parallel_for().
//
//   caller   opens the round ── takes items ── closes the round ── waits for the workers inside
//   worker   (spins, then sleeps) ── enters an open round ── takes items ── leaves
//
// What must hold:
//   * body_ and items_ are written by the caller while no worker is inside, and read by a worker only between entering
//     and leaving. error_ is written by the thread that sets failed_, and read by the caller after the join. Entering
//     (acquire) and leaving (release) go through round_, which orders all three.
//   * A worker enters only an open round of the number that it has seen. One that wakes up after the round was closed
//     does not enter, so a join never waits for a thread that has done nothing: with more threads than cores a late
//     worker costs nothing.
//   * The body lives in the caller's stack frame, so the join waits for all workers inside even when a poll throws.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "computron/device/progress.h"

namespace computron {

class ComputePool {
 public:
  using Body = std::function<void(int thread, int item)>;

  // Starts threads - 1 workers. A thread without work spins for `spin_us` microseconds, then sleeps. Error{kSystem} if
  // one cannot be started.
  ComputePool(int threads, int spin_us);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // CpuContext::parallel_for. Thread 0, the caller, calls progress.poll() after each of its items and while it waits
  // for the workers. Returns the now_s() at which thread 0 ran out of items. Rethrows the first exception of a body or
  // of poll(). Error{kInternal} from within a round.
  double parallel_for(int items, const Body& body, Progress& progress);

 private:
  // Fields of round_. The lower half is the round's number, on which workers sleep; the upper half counts the workers
  // inside, and on it the caller sleeps until they have left.
  static constexpr std::uint64_t kWorker = 1ull << 32;
  static constexpr std::uint64_t kWorkers = 0xffffffull << 32;
  static constexpr std::uint64_t kCallerAsleep = 1ull << 62;
  static constexpr std::uint64_t kOpen = 1ull << 63;

  double fork_join(int items, const Body& body, Progress& progress);
  void open_round();
  void join(Progress& progress);
  template <class AfterItem>
  void take_items(int thread, AfterItem&& after_item);
  void keep_error() noexcept;

  void stop();
  void work(int thread);
  std::uint32_t await_round_after(std::uint32_t number);
  bool enter(std::uint32_t number);
  void leave();
  template <class Done>
  bool spin_until(Done&& done) const;

  const int spin_us_;
  alignas(64) std::atomic<std::uint64_t> round_{0};
  std::atomic<int> sleepers_{0};  // workers asleep, or about to be, on the lower half of round_
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<int> next_item_{0};
  // The round's work: written by the caller while no worker is inside.
  alignas(64) const Body* body_ = nullptr;
  int items_ = 0;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;         // written by whoever sets failed_, read by the caller after the join
  std::atomic<bool> in_use_{false};  // a round is running
  std::vector<std::jthread> workers_;
};

}  // namespace computron
