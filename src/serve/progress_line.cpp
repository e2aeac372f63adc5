#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "computron/serve/live_view.h"
#include "computron/serve/metrics.h"
#include "src/serve/duration.h"

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
  if (const auto left_s = time_left_s(elapsed, state.done, state.total, state.total_known)) {
    text += fmt::format(", {} left", duration_text(std::ceil(*left_s)));
  }
  return text;
}

}  // namespace computron
