// computron postmortem: what the ranks of a job did last, from their flight recorders' files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "computron/base/error.h"
#include "src/apps/commands.h"
#include "src/apps/postmortem_report.h"

namespace computron {
namespace {

struct PostmortemOptions {
  std::vector<std::string> paths;
  std::size_t events = 40;
  std::string job;
  bool list = false;
};

// Of a folder, those of its files that are flight recorders'. A file that is named must be one; one that only lies in
// the folder may be somebody else's, and damaged.
std::vector<Flight> read_flights(const std::vector<std::string>& paths) {
  std::vector<Flight> flights;
  for (const std::filesystem::path path : paths) {
    if (!std::filesystem::is_directory(path)) {
      flights.push_back(read_flight(path));
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() != ".flight") continue;
      try {
        flights.push_back(read_flight(entry.path()));
      } catch (const Error& error) {
        fmt::print(stderr, "left out: {}\n", error.what());
      }
    }
  }
  return flights;
}

std::optional<std::uint64_t> parse_job(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::uint64_t job = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), job, /*base=*/16);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ExitCode::kUsage, fmt::format("--job: '{}' is no job's number, like 00c5f0e7a1b2c3d4", text));
  }
  return job;
}

void postmortem(const PostmortemOptions& options) {
  const std::vector<Flight> all = read_flights(options.paths);
  if (all.empty()) {
    throw Error(ExitCode::kNoInput, fmt::format("no flight recorder's file (*.flight) in {}", options.paths.front()));
  }
  if (options.list) return fmt::print("{}", list_of_jobs(all));
  const std::vector<Flight> flights = flights_of_job(all, parse_job(options.job));
  if (flights.empty()) {
    throw Error(ExitCode::kNoInput, options.job.empty()
                                        ? "all jobs here are running: --job ID looks into one, --list shows them"
                                        : fmt::format("no file of job {}: --list shows which there are", options.job));
  }
  if (flights.size() < all.size()) {
    fmt::print("{} files of other jobs are left out (--list)\n", all.size() - flights.size());
  }
  fmt::print("{}", postmortem_report(flights, options.events));
}

}  // namespace

void add_postmortem(CLI::App& app) {
  auto* command = app.add_subcommand("postmortem", "What the ranks of a job that ended did last");
  const auto options = std::make_shared<PostmortemOptions>();
  command->add_option("paths", options->paths, "Folders of, or flight recorders' files (serve --recorder)")->required();
  command->add_option("--events", options->events, "How many of the last events to show");
  command->add_option("--job", options->job,
                      "The job's number, as in its files' names; default: the one that moved last and is not running");
  command->add_flag("--list", options->list, "Show which jobs there are");
  command->callback([options] { postmortem(*options); });
}

}  // namespace computron
