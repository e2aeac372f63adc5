// Requests as a command line asks for them: which models, when they arrive, and how many tokens each has. What
// `computron plan` searches with and `computron simulate` plays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/placement/profile.h"
#include "computron/workload/arrival_sets.h"

namespace CLI {
class App;
}

namespace computron {

struct ArrivalOptions {
  std::string command = "plan";  // whose options they are, for messages
  bool searches = true;          // it uses the training as well as the test

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
  int prompt_tokens = 256, max_tokens = 64;  // as of computron profile
  std::string trace, trace_format, trace_mapping = "stripe";
  double trace_start_s = 0, trace_window_s = 0, rate_scale = 1, cv_scale = 1;
  bool has_duration = false;
};

// The options are those of `app`, which keeps a reference to `options`.
void add_arrival_options(CLI::App& app, ArrivalOptions& options);
// What only the parsed command line tells: which options were given. Error{kUsage} naming one that says nothing beside
// the others.
void note_given(const CLI::App& app, ArrivalOptions& options);

// The models of the profiles that are asked for: all, or those that are named, in that order. Error{kUsage} naming one
// that the file does not have.
std::vector<ModelProfile> models_of(const ArrivalOptions& options, const std::vector<ModelProfile>& profiled,
                                    const std::string& file_name);

ArrivalSets arrivals_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models);
// In words, of which requests the test is: "Gamma arrivals, cv 4, 64 requests/s, 600 s, seeds 42 to 83".
std::string basis_of(const ArrivalOptions& options, const std::vector<ModelProfile>& models);

}  // namespace computron
