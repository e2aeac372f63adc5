// The command line of `computron plan`, and what it asks for: a problem for the search.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/placement/placement_evaluator.h"
#include "computron/placement/profile_file.h"
#include "src/apps/arrival_options.h"

namespace CLI {
class App;
}

namespace computron {

struct PlanOptions {
  std::string profiles, output;

  ArrivalOptions requests;

  int ranks = 0;
  std::string device_memory, host_memory, page_size;  // empty: as the profiles say
  int ranks_per_node = 0;                             // 0: as the profiles say, or all
  double link_gb_per_s = 0;                           // 0: as the profiles say
  std::string swap = "on";

  std::string objective = "attainment";
  double slo_s = 0;  // 0: slo_scale times the latency of a request alone
  double slo_scale = 5;
  std::string replicas = "tp";
  bool exact = false;
  double time_limit_s = 0;  // 0: none
  int rescore = 5;          // placements that are played pass by pass; 0: none
  std::string policy;       // of the job, as they are played; empty: as the objective asks for
  int max_seqs = 64, max_batch_tokens = 0;
  bool quiet = false;
};

// The options are those of `app`, which keeps a reference to `options`.
void add_plan_options(CLI::App& app, PlanOptions& options);

// Error{kUsage} naming an option that is given, and another one without which, or with which, it says nothing.
void check_plan_options(const CLI::App& app, const PlanOptions& options);

// With `training` as its requests. Error{kUsage} naming the option that neither the command line nor the profiles give.
SearchProblem problem_of(const PlanOptions& options, const MachineProfile& machine, std::vector<ModelProfile> models,
                         std::vector<Arrival> training);

}  // namespace computron
