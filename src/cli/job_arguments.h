// The command line of a serving job, as far as `serve` and `bench` share it: models, mesh, device.
#pragma once

#include <string>
#include <vector>

#include "computron/serve/job.h"

namespace CLI {
class App;
}

namespace computron {

struct JobArguments {
  JobOptions options;
  std::vector<std::string> models;  // ID=FILE, or
  std::string roster;
  std::string device_memory, page_size, host_cache;

  // Reads models and sizes into `options`. Error{kUsage} naming the argument at fault, {kNoInput} for a roster.
  void complete();
};

// `arguments` must live as long as `app`.
void add_job_options(CLI::App& app, JobArguments& arguments);

}  // namespace computron
