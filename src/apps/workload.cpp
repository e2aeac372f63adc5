// computron workload: a request file made by rule.
#include "computron/workload/workload.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "computron/storage/files.h"
#include "src/apps/commands.h"
#include "src/cli/option_checks.h"

namespace computron {
namespace {

struct WorkloadCommand {
  std::vector<std::string> items;  // ID=RATE, or
  std::vector<std::string> ids;    // these two
  std::vector<double> rates;
  WorkloadOptions options;
  std::string output = "-";
};

void run_workload(WorkloadCommand command) {
  WorkloadOptions& options = command.options;
  options.models =
      command.items.empty() ? join_workload_models(command.ids, command.rates) : parse_workload_models(command.items);
  const std::vector<Request> requests = make_workload(options);
  const std::string lines = workload_lines(options.models, requests);
  if (command.output == "-") {
    fmt::print("{}", lines);
    return;
  }
  write_file_atomically(command.output, lines);
  fmt::print("{}: {} requests in {} s\n", command.output, requests.size(), options.duration_s);
}

void add_options(CLI::App& app, WorkloadCommand& c) {
  auto* item = app.add_option("--model", c.items, "A model and its requests per second, as ID=RATE; repeat for more");
  auto* ids = app.add_option("--models", c.ids, "The same as two lists: ids, a,b,c")->delimiter(',')->excludes(item);
  app.add_option("--rates", c.rates, "and requests per second, 10,1,1")->delimiter(',')->needs(ids);
  app.option_defaults()->always_capture_default();
  app.add_option("--cv", c.options.cv, "Coefficient of variation of the times between arrivals; 1 is Poisson");
  app.add_option("--duration", c.options.duration_s, "Seconds");
  app.add_option("--seed", c.options.seed, "The same seed gives the same bytes, on any machine")->check(whole_number());
  app.add_option("--prompt-tokens", c.options.prompt_tokens, "Tokens of a prompt");
  app.add_option("--max-tokens", c.options.max_tokens, "Tokens to generate; all of them are");
  app.add_option("--vocab", c.options.vocab, "Prompts' tokens are uniform over 4 to below this");
  app.add_option("--output,output", c.output, "Request file to write; - for standard output");
}

}  // namespace

void add_workload(CLI::App& app) {
  auto* command = app.add_subcommand("workload", "Make a request file with Gamma arrivals at each model");
  const auto options = std::make_shared<WorkloadCommand>();
  command->footer(
      "Serve it with `computron serve --replay`. Times between arrivals at a model are Gamma with shape\n"
      "1/cv^2 and scale cv^2/rate; another model in the list changes nothing for it.");
  add_options(*command, *options);
  command->callback([options] { run_workload(*options); });
}

}  // namespace computron
