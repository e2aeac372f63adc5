// Clocks of ranks on different nodes start at different times; a trace shows them side by side.
#pragma once

#include "computron/comm/mpi.h"

namespace computron {

struct ClockOffset {
  double offset_s = 0;  // now_s() here + offset_s = now_s() on rank 0
  double error_s = 0;   // at most, either way: half the shortest round trip
};

// By a few round trips with rank 0, one rank after the other. Start-up only; collective.
ClockOffset measure_clock_offset(const Communicator& world);

}  // namespace computron
