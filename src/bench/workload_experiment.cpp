#include "src/bench/workload_experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace computron {

bool WorkloadExperiment::take_input(Dispatcher& dispatcher, double /*now*/) {
  if (closed_) return false;
  for (Request& request : requests_) dispatcher.submit(std::move(request));
  dispatcher.close_input();
  return closed_ = true;
}

void WorkloadExperiment::put_results(std::vector<Completion> completions, double /*now*/) {
  for (const Completion& completion : completions) {
    if (completion.error_code.empty()) continue;
    throw ConfigError(fmt::format("request {} of the workload failed: {}", completion.id, completion.error_message));
  }
  std::move(completions.begin(), completions.end(), std::back_inserter(completions_));
}

void WorkloadExperiment::step_done(const std::vector<Report>& reports, double /*now*/) {
  link_bytes_ = 0;
  for (const Report& report : reports) {
    link_bytes_ += report.link_bytes;
    link_busy_s_ = std::max(link_busy_s_, report.busy_s);
  }
}

}  // namespace computron
