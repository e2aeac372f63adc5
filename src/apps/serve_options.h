// The command line of `computron serve`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "computron/requests/request_reader.h"
#include "computron/serve/engine.h"
#include "computron/storage/result_journal.h"
#include "src/cli/job_arguments.h"

namespace computron {

struct ServeOptions {
  JobArguments job;
  std::vector<std::string> requests;
  std::vector<std::string> output;  // [requests]
  std::string metrics;
  std::string trace;
  std::string record;
  std::string record_limit = "1GiB";
  std::size_t record_limit_bytes = 0;
  std::string status;
  std::string progress;
  std::string config;
  std::string shard;
  bool replay = false;
  double slo_s = 0;  // of models that have none of their own; 0: none
  std::string on_late = "serve";
  std::string chat_format;  // of models that have none of their own
  std::string chat_date;
  std::string guide_memory;
  bool dry_run = false;
  std::string profiles;
  bool quiet = false;
  std::size_t max_line_bytes = ReaderLimits{}.max_line_bytes;
  std::string durability = "node";
  Drain drain;
  JournalOptions journal;
  std::string recorder;
  double watchdog = 1;
  bool core = false;

  // What can be told of the names of files alone, before there are ranks. Error{kUsage} naming the option at fault.
  void check_files() const;
  // Checks the rest of what is given, and reads it into `job` and `journal`. Error{kUsage} naming the option at fault.
  void complete();

 private:
  void check_written() const;
  void choose_chat();
  void read_guide_memory();
};

// `options` must live as long as `command`.
void add_serve_options(CLI::App& command, ServeOptions& options);

// Options that only the TOML file `file` names are set as if they had been given. Keys stand alone or in a section
// [serve]. Error{kUsage} naming the file.
void apply_config(CLI::App& command, const std::string& file);

// Options with their values, in the order of --help.
using Configuration = std::vector<std::pair<std::string, std::string>>;

// Every option that is not hidden, with its value or what it is without one.
Configuration all_options(const CLI::App& command);
// Those that were given another value than they have without one.
Configuration changed_options(const CLI::App& command);

}  // namespace computron
