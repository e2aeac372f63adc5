// The command line of `computron plan`, and what it asks for: a problem for the search, and two sets of requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/placement/placement_evaluator.h"
#include "computron/placement/profile_file.h"
#include "computron/workload/arrival_sets.h"

namespace CLI {
class App;
}

namespace computron {

struct PlanOptions {
  std::string profiles, output;

  std::vector<std::string> model_rates;  // ID=RATE; empty: all models, by rate and skew
  double rate_per_s = 0;
  std::string arrivals = "gamma";
  double cv = 1, shape = 0;         // of Gamma arrivals; of Pareto and Weibull ones
  std::vector<std::string> states;  // SECONDS=RATE, of MMPP arrivals
  double duration_s = 600;
  std::string shares = "even";  // of the models
  double skew = 0.5;            // of the power law
  std::uint64_t seed = 0;
  std::uint32_t known = 0;
  std::string trace, trace_format, trace_mapping = "stripe";
  double trace_start_s = 0, trace_window_s = 0, rate_scale = 1, cv_scale = 1;
  bool has_duration = false;

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
  bool quiet = false;
};

// The options are those of `app`, which keeps a reference to `options`.
void add_plan_options(CLI::App& app, PlanOptions& options);

// Error{kUsage} naming an option that is given, and another one without which, or with which, it says nothing.
void check_plan_options(const CLI::App& app, const PlanOptions& options);
// What options say of others that are not given: --skew asks for a power law.
void complete_plan_options(const CLI::App& app, PlanOptions& options);

// The models of `file` that are asked for: all, or those that are named, in that order. Error{kUsage} naming one that
// it does not have.
std::vector<ModelProfile> models_of(const PlanOptions& options, const ProfileFile& file);

ArrivalSets arrivals_of(const PlanOptions& options, const std::vector<ModelProfile>& models);
// In words, of which requests the test is: "Gamma arrivals, cv 4, 64 requests/s, 600 s, seeds 42 to 83".
std::string basis_of(const PlanOptions& options, const std::vector<ModelProfile>& models);

// With `training` as its requests. Error{kUsage} naming the option that neither the command line nor the profiles give.
SearchProblem problem_of(const PlanOptions& options, const MachineProfile& machine, std::vector<ModelProfile> models,
                         std::vector<Arrival> training);

}  // namespace computron
