#include "computron/base/log.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace computron {
namespace {

constexpr int kRoom_ms = 100;  // to wait for room in a full pipe

std::string failure_line(int rank, const std::string& what) {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  return fmt::format("computron: rank {} {}: {}\n", rank, host, what);
}

}  // namespace

void init_logging(int rank, bool quiet) {
  auto logger = spdlog::stderr_logger_mt("computron");
  logger->set_pattern(rank == 0 ? "computron: %v" : fmt::format("computron: rank {}: %v", rank));
  logger->set_level(rank == 0 && !quiet ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(logger);
}

void report_failure(int rank, const std::string& what) noexcept {
  const std::string line = failure_line(rank, what);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

// A pipe that has room takes so much without blocking.
void say_at_once(std::string line) noexcept {
  if (line.ends_with('\n')) line.pop_back();
  line.resize(std::min(line.size(), std::size_t{PIPE_BUF} - 1));
  line += '\n';
  pollfd out{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&out, 1, kRoom_ms) <= 0) return;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

void say_failure_at_once(int rank, const std::string& what) noexcept { say_at_once(failure_line(rank, what)); }

}  // namespace computron
