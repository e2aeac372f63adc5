// From a public trace to arrivals at models, as AlpaServe made its workloads of Azure's: either its requests as they
// were, or Gamma arrivals of the rate and burstiness that each window of it has, which can be scaled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "computron/workload/arrivals.h"
#include "computron/workload/trace.h"

namespace computron {

// Which model answers for a source. Sources that ask nothing in the part of the trace that is taken do not count.
enum class SourceMapping {
  kStripe,  // model = source mod models
  kBlocks,  // contiguous sources: model = source · models / sources
  kDealt,   // the source is the model, and counts even where it asks nothing
};

struct RateWindow {
  std::uint32_t model = 0;
  TimeSpan span;
  double rate_per_s = 0;
  double cv = 1;
};

// A window a minute in which a model is called. Counts say nothing of gaps: cv is 1.
std::vector<RateWindow> windows_of_counts(const CallCounts& counts, std::uint32_t models, SourceMapping mapping);

// Windows of window_s of `span` of the trace with at least three requests at a model: the Gamma of greatest likelihood
// for the gaps, but no more than five times the window's own rate is believed. `span` becomes [0, duration_s), of at
// most a million windows.
std::vector<RateWindow> fit_windows(const RequestTrace& trace, std::uint32_t models, SourceMapping mapping,
                                    TimeSpan span, double window_s);

struct WindowScales {
  double rate = 1;
  double cv = 1;
};
// Gamma arrivals within each window. Windows in order of model and time have the seeds `seed`, `seed` + 1, ...
// A scaled cv below kMinCv counts as that: gaps are all but equal. Error{kUsage} above kMaxCv, or where there would be
// more than kMostArrivals.
std::vector<Arrival> arrivals_of_windows(std::span<const RateWindow> windows, WindowScales scales, std::uint32_t seed);

// The requests of `span`, which becomes [0, duration_s / speed), each `copies` times.
struct ReplayOptions {
  SourceMapping mapping = SourceMapping::kStripe;
  double speed = 1;
  int copies = 1;
};
std::vector<Arrival> replay(const RequestTrace& trace, std::uint32_t models, TimeSpan span,
                            const ReplayOptions& options = {});

// Shape of the Gamma distribution of greatest likelihood, where log(mean of x) - mean of log(x) is `gap` > 0.
double gamma_shape_of(double gap);

}  // namespace computron
