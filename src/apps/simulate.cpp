// computron simulate: what the schedulers that serve would make of requests on a given placement, or of those of a
// job's record.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "computron/base/error.h"
#include "src/apps/commands.h"
#include "src/apps/simulate_placement.h"
#include "src/apps/simulate_steps.h"

namespace computron {
namespace {

struct SimulateOptions {
  PlacementRunOptions placement;
  StepReplayOptions replay;
};

// A record says itself what else there is to know. Error{kUsage} naming an option that is given beside it.
void check_replay(const CLI::App& command) {
  static const std::set<std::string> kTaken = {"--steps",         "--link-gbps", "--link-scale", "--compute-scale",
                                               "--device-memory", "--page-size", "--help"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || kTaken.contains(name)) continue;
    throw Error(ExitCode::kUsage, fmt::format("simulate: --steps has no use for {}", name));
  }
}

void run_simulate(const CLI::App& command, SimulateOptions& options) {
  PlacementRunOptions& placement = options.placement;
  if (options.replay.steps.empty()) {
    if (placement.profiles.empty()) throw Error(ExitCode::kUsage, "simulate: neither profiles nor --steps are given");
    note_given(command, placement.requests);
    return run_placement(placement);
  }
  check_replay(command);
  options.replay.device_memory = placement.device_memory;
  options.replay.page_size = placement.page_size;
  if (placement.link_gb_per_s > 0) options.replay.link_gbps = placement.link_gb_per_s;
  run_replay(options.replay);
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto* command = app.add_subcommand(
      "simulate", "Play requests against a placement, or a job's record again, pass by pass and without ranks");
  const auto options = std::make_shared<SimulateOptions>();
  command->footer(
      "The dispatcher and the schedulers of computron serve decide; ranks exist in virtual time only, and passes take\n"
      "what the profiles say (src/plan/README.md). Nothing is resident at first. The requests are those that the\n"
      "prediction of computron plan with the same options is of; with --steps those of the record.");
  add_placement_run_options(*command, options->placement);
  add_replay_options(*command, options->replay);
  command->callback([options, command] { run_simulate(*command, *options); });
}

}  // namespace computron
