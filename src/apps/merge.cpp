// computron merge: the results of shards in one file.
#include "computron/storage/merge.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/apps/commands.h"

namespace computron {
namespace {

bool contains(const std::vector<std::string>& files, const std::string& file) {
  return std::find(files.begin(), files.end(), file) != files.end();
}

// The output that the file lies beside: OUT of OUT.done, of OUT.journal and so on, if OUT is among the files or, as
// that of a job that is not finished, does not exist. Otherwise the file.
std::string output_of(const std::string& file, const std::vector<std::string>& files) {
  for (const std::string end : {".done", ".partial", ".journal", ".lock", ".losses", ".spool"}) {
    if (!file.ends_with(end)) continue;
    const std::string output = file.substr(0, file.size() - end.size());
    if (contains(files, output) || (end != ".done" && !std::filesystem::exists(output))) return output;
  }
  return file;
}

// The shell's OUT.[0-9]* brings along what lies beside outputs.
std::vector<std::string> outputs_of(const std::vector<std::string>& files) {
  std::vector<std::string> outputs;
  for (const std::string& file : files) {
    const std::string output = output_of(file, files);
    const bool named = output == file;
    if (named || !(contains(files, output) || contains(outputs, output))) outputs.push_back(output);
  }
  return outputs;
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
    options->shards = outputs_of(options->shards);
    const std::uint64_t results = merge_results(*options);
    fmt::print("{}: {} results of {} shards{}\n", options->output, results, options->shards.size(),
               options->requests.empty() ? "; not checked against requests, which --requests does" : "");
  });
}

}  // namespace computron
