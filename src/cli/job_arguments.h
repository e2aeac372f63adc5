// The command line of a serving job, as far as `serve` and `bench` share it: models, mesh, device.
#pragma once

#include <string>
#include <vector>

#include "computron/serve/job_options.h"

namespace CLI {
class App;
}

namespace computron {

struct JobArguments {
  JobOptions options;               // numbers and flags as they are parsed; the rest by complete()
  std::vector<std::string> models;  // ID=FILE, or
  std::string model_list;
  std::string placement;  // a file
  std::string device = "auto", transport = "auto", policy = "balanced", verify_swap = "auto", host_pages = "shared";
  std::string model_pages = "shared";
  std::string coded = "auto";
  std::string idle, device_memory, page_size, host_cache;

  // Reads models, names and sizes into `options`. Error{kUsage} naming the argument at fault, {kNoInput} for a model
  // list.
  void complete();

 private:
  void read_models();
};

// Error{kUsage} naming `text`.
PolicyChoice parse_policy(const std::string& text);

// `arguments` must live as long as `app`.
void add_job_options(CLI::App& app, JobArguments& arguments);
// Those of a job of several groups of ranks; behind add_job_options().
void add_group_options(CLI::App& app, JobArguments& arguments);

}  // namespace computron
