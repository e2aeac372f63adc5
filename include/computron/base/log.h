// Log lines on stderr: rank 0 plain, others tagged with their rank. Results and tables never go through here.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace computron {

// Sets up spdlog's default logger. Rank 0 logs at `info` (or `warn` when quiet), others at `warn`.
void init_logging(int rank, bool quiet);

// Writes the single line `computron: rank r host: what` to stderr with one write(2), so that ranks' lines never mix.
void report_failure(int rank, const std::string& what) noexcept;

// Writes a line to stderr past the logger, whose lock a hanging thread may hold: one write(2) if stderr takes it within
// a tenth of a second, else the line is lost. A line is cut to 4 KiB.
void say_at_once(std::string line) noexcept;
void say_failure_at_once(int rank, const std::string& what) noexcept;  // as report_failure()

}  // namespace computron
