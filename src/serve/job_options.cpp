#include "computron/serve/job_options.h"

namespace computron {

std::string_view name_of(DeviceChoice device) {
  switch (device) {
    case DeviceChoice::kCpu:
      return "cpu";
    case DeviceChoice::kGpu:
      return "cuda";
    case DeviceChoice::kAuto:
      break;
  }
  return "auto";
}

std::string_view name_of(PolicyChoice policy) {
  switch (policy) {
    case PolicyChoice::kFifo:
      return "fifo";
    case PolicyChoice::kThroughput:
      return "throughput";
    case PolicyChoice::kBalanced:
      break;
  }
  return "balanced";
}

}  // namespace computron
