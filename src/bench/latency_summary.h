// Mean and percentiles of latencies.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "computron/base/error.h"

namespace computron {

// Nearest rank: the smallest value that at least the fraction `p` of all do not exceed. `sorted` is not empty.
inline double percentile(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

struct LatencySummary {
  double mean_s = 0, p50_s = 0, p99_s = 0;
};

// Of at least one.
inline LatencySummary summary_of(std::vector<double> latencies_s) {
  ensure(!latencies_s.empty(), "the latency of nothing");
  std::sort(latencies_s.begin(), latencies_s.end());
  const double sum = std::accumulate(latencies_s.begin(), latencies_s.end(), 0.0);
  return {sum / static_cast<double>(latencies_s.size()), percentile(latencies_s, 0.5), percentile(latencies_s, 0.99)};
}

}  // namespace computron
