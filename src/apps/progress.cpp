#include "src/apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "computron/base/size.h"
#include "computron/base/time.h"

namespace computron {
namespace {

constexpr auto kQuietTime = std::chrono::seconds(2);
constexpr auto kTerminalPeriod = std::chrono::milliseconds(250);
constexpr auto kLogPeriod = std::chrono::seconds(10);

}  // namespace

ByteProgress::ByteProgress(std::string what, std::size_t total_bytes)
    : what_(std::move(what)),
      total_bytes_(total_bytes),
      start_s_(now_s()),
      terminal_(isatty(STDERR_FILENO) == 1),
      reporter_([this](const std::stop_token& stop) { report(stop); }) {}

ByteProgress::~ByteProgress() {
  reporter_.request_stop();
  reporter_.join();
  if (printed_ && terminal_) std::fputs("\r\033[K", stderr);
}

double ByteProgress::elapsed_s() const { return now_s() - start_s_; }

void ByteProgress::report(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto pause = [&](auto period) {
    wake_.wait_for(lock, stop, period, [] { return false; });
    return !stop.stop_requested();
  };
  if (!pause(kQuietTime)) return;
  do {
    print();
    printed_ = true;
  } while (terminal_ ? pause(kTerminalPeriod) : pause(kLogPeriod));
}

void ByteProgress::print() const {
  const std::size_t done = done_bytes_.load(std::memory_order_relaxed);
  const double rate = static_cast<double>(done) / elapsed_s();
  const auto line = fmt::format("computron: {}: {} of {}, {:.2f} GB/s", what_, format_size(done),
                                format_size(total_bytes_), rate * 1e-9);
  std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
}

}  // namespace computron
