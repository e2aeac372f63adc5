// Loops over independent items on several threads.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace computron {

// The cores this process may run on (its affinity mask: what Slurm or taskset left it); at least 1.
inline int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Calls body(thread, item) for every item in [0, count), items handed out in order to `threads` threads numbered from
// 0. After an exception no more items are handed out, and the first one is rethrown when all threads have ended.
template <class Body>
void parallel_for(std::size_t count, int threads, Body&& body) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](int thread) {
    try {
      for (std::size_t item; (item = next.fetch_add(1)) < count;) body(thread, item);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace computron
