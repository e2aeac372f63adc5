// computron simulate: what the schedulers that serve would make of requests on a given placement.
#include <CLI/CLI.hpp>
#include <memory>

#include "src/apps/commands.h"
#include "src/apps/simulate_placement.h"

namespace computron {

void add_simulate(CLI::App& app) {
  auto* command = app.add_subcommand("simulate", "Play requests against a placement, pass by pass, without ranks");
  const auto options = std::make_shared<PlacementRunOptions>();
  command->footer(
      "The dispatcher and the schedulers of computron serve decide; ranks exist in virtual time only, and passes take\n"
      "what the profiles say (src/plan/README.md). Nothing is resident at first. The requests are those that the\n"
      "prediction of computron plan with the same options is of.");
  add_placement_run_options(*command, *options);
  command->get_option("profiles")->required();
  command->callback([options, command] {
    note_given(*command, options->requests);
    run_placement(*options);
  });
}

}  // namespace computron
