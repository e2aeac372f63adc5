// Two sets of requests of one kind: one that a placement is fitted to, and one that it is judged by. What the search
// has seen says too much good of what it found.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "computron/workload/arrivals.h"
#include "computron/workload/rate_windows.h"

namespace computron {

struct ArrivalSets {
  std::vector<Arrival> training, test;  // each in order of time, from 0 on
  double duration_s = 0;                // of the test
};

// Arrivals by rule: the training has the seeds from `seed` on, a model each, and the test the next ones.
ArrivalSets sets_by_rule(const ArrivalProcess& process, std::span<const double> rates_per_s, double duration_s,
                         std::uint32_t seed);

// As many requests of each model as `counts` says, all there from the start: the test is the training.
ArrivalSets sets_of_known(std::span<const std::uint32_t> counts);

// `total` requests divided by weight; what is left over goes to those whose parts were rounded down most.
std::vector<std::uint32_t> divided_requests(std::uint32_t total, std::span<const double> weights);

enum class TraceFormat { kAzureFunctions2019, kAzureFunctions2021, kAzureLlm, kMooncake, kServeGen };

struct TraceUse {
  std::string file;  // ServeGen: a folder
  TraceFormat format = TraceFormat::kAzureFunctions2021;
  SourceMapping mapping = SourceMapping::kStripe;
  TimeSpan span = {};        // of the trace; a duration of 0: to its end
  double window_s = 0;       // above 0: Gamma arrivals of the rate and burstiness of each window; 0: the trace's own
  WindowScales scales = {};  // without windows a higher rate is a faster replay, and cv must be 1
  // [model] by which the requests of a trace of one source are dealt to the models; empty: evenly. Those of several
  // sources are mapped, and have no use for it.
  std::vector<double> shares = {};
};

// Windows have the seeds from `seed` on in the training, and the next ones in the test. Without windows the requests of
// the first half of the time are the training and those of the second half the test; ServeGen's clients are sampled
// twice. Error{kUsage}, {kNoInput} or {kData} naming what is wrong.
ArrivalSets sets_of_trace(const TraceUse& use, std::uint32_t models, std::uint32_t seed);

}  // namespace computron
