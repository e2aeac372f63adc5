// The subcommands of `computron`. Each adds itself to the program with its options and, as its callback, its work.
// Work that fails throws: Error for what is the caller's or the data's fault, CLI::RuntimeError to end with a code
// after the reason has been said.
#pragma once

namespace CLI {
class App;
}

namespace computron {

class ServeHooks;

void add_convert(CLI::App& app);
void add_init(CLI::App& app);
void add_inspect(CLI::App& app);
void add_merge(CLI::App& app);
void add_plan(CLI::App& app);
void add_postmortem(CLI::App& app);
void add_profile(CLI::App& app, ServeHooks& hooks);  // borrows `hooks`
void add_report(CLI::App& app);
void add_serve(CLI::App& app, ServeHooks& hooks);  // the same
void add_simulate(CLI::App& app);
void add_workload(CLI::App& app);

}  // namespace computron
