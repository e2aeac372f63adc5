// Options of a job of two models, for tests of what is decided from options alone: no file is read.
#pragma once

#include "computron/serve/job_options.h"

namespace computron {

inline JobOptions models_a_and_b() {
  JobOptions options;
  options.models = {{.id = "a", .path = "a.h5"}, {.id = "b", .path = "b.h5"}};
  options.device = DeviceChoice::kCpu;
  return options;
}

}  // namespace computron
