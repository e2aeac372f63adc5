#include "computron/base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

namespace computron {

void init_logging(int rank, bool quiet) {
  auto logger = spdlog::stderr_logger_mt("computron");
  logger->set_pattern(rank == 0 ? "computron: %v" : fmt::format("computron: rank {}: %v", rank));
  logger->set_level(rank == 0 && !quiet ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(logger);
}

void report_failure(int rank, const std::string& what) noexcept {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  const std::string line = fmt::format("computron: rank {} {}: {}\n", rank, host, what);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace computron
