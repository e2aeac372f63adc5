#include "src/apps/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>

#include "computron/base/error.h"
#include "computron/base/launcher.h"
#include "computron/comm/mpi.h"
#include "src/apps/commands.h"
#include "src/apps/man_page.h"
#include "src/apps/version.h"
#include "src/bench/commands.h"

namespace computron {
namespace {

// What all ranks say is said once, by rank 0. The others leave time for that: a launcher kills all ranks when the first
// has failed. One that is still there then has a reason of its own.
int fail(ExitCode code, const char* what) {
  const char* rank = launched_rank();
  if (rank == nullptr || std::string_view(rank) == "0") {
    std::fprintf(stderr, "computron: %s\n", what);
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    std::fprintf(stderr, "computron: rank %s %s: %s\n", rank, host_name().c_str(), what);
  }
  return static_cast<int>(code);
}

// --help and --version come as exceptions too.
int end_of_parsing(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  return fail(ExitCode::kUsage, fmt::format("{} (--help tells more)", error.what()).c_str());
}

// Only the build wants it: hidden.
void add_man(CLI::App& app) {
  app.add_subcommand("man", "The manual page")->group("")->callback([&app] { fmt::print("{}", man_page(app)); });
}

void parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const std::system_error&) {
    if (std::ferror(stdout) == 0) throw;  // what prints more than fits the stream's buffer throws this
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error(ExitCode::kIo, "standard output cannot be written");
  }
}

}  // namespace

int run_program(int argc, char** argv, ServeHooks& hooks, const std::function<void(CLI::App&)>& extend) try {
  CLI::App app("Computron serves many large transformer models from one MPI job.", "computron");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  add_serve(app, hooks);
  add_merge(app);
  add_convert(app);
  add_init(app);
  add_inspect(app);
  add_plan(app);
  add_simulate(app);
  add_postmortem(app);
  add_profile(app, hooks);
  add_workload(app);
  add_report(app);
  add_bench(app);
  add_man(app);
  if (extend) extend(app);
  try {
    parse_and_run(app, argc, argv);
    return static_cast<int>(ExitCode::kOk);
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return end_of_parsing(app, error);
  }
} catch (const Error& error) {
  return fail(error.code(), error.what());
} catch (const std::bad_alloc&) {
  return fail(ExitCode::kSystem, "out of memory");
} catch (const std::system_error& error) {
  return fail(ExitCode::kSystem, error.what());
} catch (const std::exception& error) {
  return fail(ExitCode::kInternal, error.what());
}

}  // namespace computron
