// Times parts of a load.
#pragma once

#include "computron/base/time.h"

namespace computron {

// Adds the time of its life to `seconds`.
class Lap {
 public:
  explicit Lap(double& seconds) : seconds_(seconds) {}
  ~Lap() { seconds_ += now_s() - start_; }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  double& seconds_;
  double start_ = now_s();
};

}  // namespace computron
