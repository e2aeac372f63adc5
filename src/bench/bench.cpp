// computron bench: measurements, a subcommand each.
#include <CLI/CLI.hpp>

#include "src/bench/commands.h"

namespace computron {

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Measure one thing beside its bound");
  command->require_subcommand(1);
  add_bench_forward(*command);
  add_bench_load(*command);
  add_bench_pages(*command);
  add_bench_step(*command);
  add_bench_swap(*command);
  add_bench_workload(*command);
}

}  // namespace computron
