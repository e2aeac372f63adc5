// The program as a function: main() of the product calls it, and programs of the tests call it with hooks of their own.
#pragma once

#include <functional>

#include "computron/serve/serve_hooks.h"

namespace CLI {
class App;
}

namespace computron {

// Parses the command line, runs one subcommand, and turns what it throws into one line on stderr and the exit code of
// base/error.h. Borrows `hooks`, which `serve` and `profile` use; `extend` may add options to the finished command
// line.
int run_program(int argc, char** argv, ServeHooks& hooks = no_hooks(),
                const std::function<void(CLI::App& app)>& extend = {});

}  // namespace computron
