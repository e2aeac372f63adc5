#include "computron/comm/tags.h"

#include <fmt/format.h>

namespace computron::tags {

std::string name_of(int tag) {
  switch (tag) {
    case kStep:
      return "step";
    case kReport:
      return "report";
    case kActivation:
      return "activation";
    case kClock:
      return "clock";
    case kTrace:
      return "trace";
    case kLargeStep:
      return "large step";
    case kStop:
      return "stop";
    case kSign:
      return "sign of life";
    case kAlarm:
      return "alarm";
    case kTopLogits:
      return "logit summary";
    case kAllReduce:
      return "all-reduce";
    case kAgreement:
      return "agreement";
    case kMeasurement:
      return "measurement";
    default:
      return fmt::format("{}", tag);
  }
}

}  // namespace computron::tags
