// computron simulate: what a job did, played again under other conditions.
#include <CLI/CLI.hpp>
#include <memory>

#include "computron/base/error.h"
#include "src/apps/commands.h"
#include "src/apps/simulate_steps.h"

namespace computron {

void add_simulate(CLI::App& app) {
  auto* command = app.add_subcommand("simulate",
                                     "Play a job's record again: what would other links, devices or pages "
                                     "have given?");
  command->option_defaults()->always_capture_default();
  const auto options = std::make_shared<ReplayOptions>();
  add_replay_options(*command, *options);
  command->callback([options] {
    if (options->steps.empty()) throw Error(ExitCode::kUsage, "simulate: --steps is required");
    run_replay(*options);
  });
}

}  // namespace computron
