// What the benchmarks of rank 0's own work share: a stage of a model without bytes, for ranks that exist in virtual
// time only, and a clock that other programs' turns do not move.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "computron/ops/cpu_probe.h"
#include "perf/even_layout.h"

namespace computron {

inline constexpr int kVirtualPages = 64;  // of a stage's shard
inline constexpr std::size_t kVirtualPageBytes = std::size_t{16} << 20;

inline ShardLayout virtual_stage() {
  return even_layout(kVirtualPages, kVirtualPageBytes, /*layers=*/16, /*kv_heads=*/8);
}

// Processor time of this thread.
inline double processor_us() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

// Requires at least one value.
template <class T>
T quantile(std::vector<T> values, double q) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// "processor family 25, model 17, vectors of 512 bits".
inline std::string processor() {
  std::string family, model;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line) && (family.empty() || model.empty());) {
    const auto value = [&line] { return line.substr(line.find(':') + 2); };
    if (line.starts_with("cpu family")) family = value();
    if (line.starts_with("model\t")) model = value();
  }
  return fmt::format("processor family {}, model {}, {}", family, model, instruction_set());
}

}  // namespace computron
