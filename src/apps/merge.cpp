// computron merge: the results of shards in one file.
#include "computron/serve/merge.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "src/apps/commands.h"

namespace computron {
namespace {

// Without the signs beside finished outputs (OUT.done of OUT), which the shell's OUT.[0-9]* brings along.
std::vector<std::string> without_signs(const std::vector<std::string>& files) {
  std::vector<std::string> kept;
  std::copy_if(files.begin(), files.end(), std::back_inserter(kept), [&](const std::string& file) {
    const auto sign = [&file](const std::string& of) { return file == of + ".done"; };
    return std::none_of(files.begin(), files.end(), sign);
  });
  return kept;
}

}  // namespace

void add_merge(CLI::App& app) {
  auto* command = app.add_subcommand("merge", "Put the results of shards together, in the order of the requests");
  const auto options = std::make_shared<MergeOptions>();
  command->add_option("output", options->output, "Result file to write; appears when it is whole")->required();
  command->add_option("shards", options->shards, "Result files of computron serve --shard")->required();
  command->add_option("--requests", options->requests,
                      "The requests of all shards: every one must have exactly one result, with its custom_id");
  command->callback([options] {
    options->shards = without_signs(options->shards);
    const std::uint64_t results = merge_results(*options);
    fmt::print("{}: {} results of {} shards\n", options->output, results, options->shards.size());
  });
}

}  // namespace computron
