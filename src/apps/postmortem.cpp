// computron postmortem: what the ranks of a job did last, from their flight recorders' files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "computron/base/error.h"
#include "src/apps/commands.h"
#include "src/apps/postmortem_report.h"

namespace computron {
namespace {

struct PostmortemOptions {
  std::vector<std::string> paths;
  std::size_t events = 40;
};

// Of a folder, those of its files that are flight recorders'.
std::vector<Flight> read_flights(const std::vector<std::string>& paths) {
  std::vector<Flight> flights;
  for (const std::filesystem::path path : paths) {
    if (!std::filesystem::is_directory(path)) {
      flights.push_back(read_flight(path));
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".flight") flights.push_back(read_flight(entry.path()));
    }
  }
  return flights;
}

void postmortem(const PostmortemOptions& options) {
  const std::vector<Flight> all = read_flights(options.paths);
  if (all.empty()) {
    throw Error(ExitCode::kNoInput, fmt::format("no flight recorder's file (*.flight) in {}", options.paths.front()));
  }
  const std::vector<Flight> flights = flights_of_last_job(all);
  if (flights.size() < all.size()) fmt::print("{} files of earlier jobs are left out\n", all.size() - flights.size());
  fmt::print("{}", postmortem_report(flights, options.events));
}

}  // namespace

void add_postmortem(CLI::App& app) {
  auto* command = app.add_subcommand("postmortem", "What the ranks of a job that ended did last");
  const auto options = std::make_shared<PostmortemOptions>();
  command->add_option("paths", options->paths, "Folders of, or flight recorders' files (serve --recorder)")->required();
  command->add_option("--events", options->events, "How many of the last events to show");
  command->callback([options] { postmortem(*options); });
}

}  // namespace computron
