#include "computron/base/stop.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "computron/base/error.h"

namespace computron {
namespace {

struct Named {
  int number;
  const char* name;
};
constexpr Named kSignals[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};

std::atomic<int> count{0}, first{0}, most{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use it");

void note(int signal) {
  int none = 0;
  first.compare_exchange_strong(none, signal);
  if (count.fetch_add(1) + 1 > most) _exit(static_cast<int>(ExitCode::kStopped));
}

}  // namespace

void catch_stop_signals(int max_signals) {
  most = max_signals;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (const Named& signal : kSignals) {
    struct sigaction before {};
    sigaction(signal.number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal.number, &action, nullptr);
  }
}

int stop_signals() noexcept { return count.load(std::memory_order_relaxed); }

bool only_warned() noexcept { return count == 1 && first == SIGUSR1; }

std::string stop_signal_name() {
  for (const Named& signal : kSignals) {
    if (signal.number == first) return signal.name;
  }
  return "a signal to another rank";
}

std::string stopped_early() {
  return "stopped early by " + stop_signal_name() + "; run the same command again to go on";
}

void throw_if_stopped() {
  if (stop_signals() > 0) throw Error(ExitCode::kStopped, stopped_early());
}

}  // namespace computron
