// ServeGen's description of what clients ask (Xiang et al., "ServeGen: Workload Characterization and Generation of
// Large Language Model Serving in Production", NSDI 2026): a folder with two files a client,
//
//   chunk-N-trace.csv      start of a window (s), rate (1/s), cv, Gamma or Weibull, shape, scale
//   chunk-N-dataset.json   {"start": {"input_tokens": "{100: 0.25, 130: 0.75}", "output_tokens": "..."}}
//
// Shapes are taken from it; scales follow from the rates.
#pragma once

#include <string>
#include <vector>

#include "computron/workload/arrivals.h"
#include "computron/workload/trace.h"

namespace computron {

// How likely so many tokens are.
struct TokenHistogram {
  std::vector<std::int32_t> tokens;
  std::vector<double> up_to;  // probability of at most tokens[i]; the last is 1
};

struct ServeGenWindow {
  TimeSpan span;
  double rate_per_s = 0;
  ArrivalProcess process;
  TokenHistogram prompt, output;  // empty where the data say nothing
};
using ServeGenClient = std::vector<ServeGenWindow>;  // in order of time

// In order of N. Error{kNoInput} or {kData} naming file and line.
std::vector<ServeGenClient> read_servegen(const std::string& folder);

// Requests in `span` of the data's time, which become [0, span.duration_s); a client is a source.
RequestTrace sample_servegen(const std::vector<ServeGenClient>& clients, TimeSpan span, double rate_scale,
                             std::uint32_t seed);

}  // namespace computron
