// Monotonic time in seconds. Logic uses nothing else; wall-clock time appears in logs only.
#pragma once

#include <cstdint>
#include <ctime>

namespace computron {

// Seconds of CLOCK_MONOTONIC.
inline double now_s() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace computron
