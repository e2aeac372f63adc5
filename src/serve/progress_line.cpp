#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "computron/serve/metrics.h"

namespace computron {
namespace {

constexpr double kTerminalInterval_s = 0.2;
constexpr std::string_view kClearToEnd = "\x1b[K";

std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// One write(2), so that the line never mixes with log lines. A line that is lost harms nothing.
void show(const std::string& text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

// 93.4 → "1:33", 7300 → "2:01:40".
std::string duration(double seconds) {
  const auto whole = static_cast<long>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

ProgressLine::ProgressLine(bool enabled, double start_s, double interval_s)
    : enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_s_(start_s),
      interval_s_(terminal_ ? std::min(interval_s, kTerminalInterval_s) : interval_s),
      last_s_(start_s) {}

void ProgressLine::update(double now, const State& state) {
  if (!due(now)) return;
  last_s_ = now;
  // A line that wraps could not be rewritten.
  show(terminal_ ? fmt::format("\r{}{}", line(now, state).substr(0, terminal_columns() - 1), kClearToEnd)
                 : line(now, state) + "\n");
}

void ProgressLine::finish(double now, const State& state) {
  if (!enabled_) return;
  show(terminal_ ? fmt::format("\r{}{}\n", line(now, state), kClearToEnd) : line(now, state) + "\n");
}

std::string ProgressLine::line(double now, const State& state) const {
  const double elapsed = std::max(now - start_s_, 1e-9);
  std::string text = fmt::format("requests {}/{}{}, {:.1f} tokens/s", state.done, state.total,
                                 state.total_known ? "" : "+", static_cast<double>(state.generated_tokens) / elapsed);
  if (!state.model.empty()) text += fmt::format(", {}", state.model);
  if (state.swapping) text += ", swapping";
  if (state.total_known && state.done > 0 && state.done < state.total) {
    const double left = elapsed / static_cast<double>(state.done) * static_cast<double>(state.total - state.done);
    text += fmt::format(", {} left", duration(std::ceil(left)));
  }
  return text;
}

}  // namespace computron
