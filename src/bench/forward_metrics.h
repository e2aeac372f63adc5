// How the metrics of the forward experiment are shown.
#pragma once

#include <string>

#include "src/bench/forward_experiment.h"

namespace computron {

std::string forward_table(const ForwardOptions& options, const ForwardMetrics& metrics);
std::string forward_json(const ForwardOptions& options, const ForwardMetrics& metrics);

}  // namespace computron
