#include "computron/base/status_signal.h"

#include <signal.h>

#include <atomic>

namespace computron {
namespace {

std::atomic<int> count{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use it");

}  // namespace

void catch_status_signal() {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { count.fetch_add(1, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGUSR2, &action, nullptr);
}

int status_signals() noexcept { return count.load(std::memory_order_relaxed); }

}  // namespace computron
