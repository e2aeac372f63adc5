// What this machine's host links and processors give, measured in a fraction of a second: the rates behind a plan's
// times.
#pragma once

#include "computron/comm/mpi.h"
#include "computron/ops/ops.h"
#include "computron/sched/cost_model.h"

namespace computron {

// Collective: all ranks measure at once, since they share memory and cores, and get the slowest rank's rates.
//   link     a plain copy of 64 MiB through a copy stream (emulated links included)
//   memory   GEMM of one row by a packed weight of 64 MiB of `dtype`: bytes of weights ÷ time
//   flops    the same with 256 rows
// Takes 128 MiB of the rank's memory meanwhile, and keeps none; borrows all arguments during the call.
// OutOfDeviceMemory where it does not fit, Error{kSystem} from the device.
CostOptions measure_costs(const Communicator& world, Device& device, Ops& ops, Progress& progress,
                          const WeightType& type);

}  // namespace computron
