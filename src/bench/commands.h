// `computron bench` and its subcommands. Each adds itself to the program with its options and, as its callback, its
// work (src/apps/commands.h says how work that fails ends).
#pragma once

namespace CLI {
class App;
}

namespace computron {

void add_bench(CLI::App& app);

// Below bench.
void add_bench_forward(CLI::App& bench);
void add_bench_load(CLI::App& bench);
void add_bench_pages(CLI::App& bench);
void add_bench_step(CLI::App& bench);
void add_bench_swap(CLI::App& bench);
void add_bench_workload(CLI::App& bench);

}  // namespace computron
