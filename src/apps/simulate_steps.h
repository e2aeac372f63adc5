// `computron simulate --steps`: a record played again.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace computron {

struct StepReplayOptions {
  std::string steps;  // file of serve --record; empty: no replay is wanted
  std::optional<double> link_gbps = {};
  double link_scale = 1;
  double compute_scale = 1;
  std::string device_memory, page_size;
};

// What a record has options of its own for; `command` has --link-gbps already. `options` must live as long as
// `command`.
void add_replay_options(CLI::App& command, StepReplayOptions& options);

// Prints what was recorded, what its replay gives, and what it would have given otherwise. Error{kUsage} for options
// that cannot be, those of read_record(), and ConfigError where a model does not fit.
void run_replay(const StepReplayOptions& options);

}  // namespace computron
