// Sums and transfers of any device through host memory: from the device, over MPI on a CPU stream, back to the device.
//
//   device --copy--> host buffer --MPI--> host buffer --copy--> device
//
// The device's stream is synchronized, polling meanwhile, before MPI reads or writes the host buffer. So nothing
// overlaps: this transport is for devices that cannot reach each other, and for tests.
#pragma once

#include <memory>

#include "computron/comm/all_reduce.h"
#include "computron/comm/stage_transfer.h"

namespace computron {

// Sums on the device's streams by `host`, which sums on CPU streams. Borrows `device` and `progress`; allocates host
// memory of `device` for `max_count` floats.
std::unique_ptr<AllReduce> make_staged_all_reduce(std::unique_ptr<AllReduce> host, Device& device, Progress& progress,
                                                  std::size_t max_count);
// The same; twice as much memory.
std::unique_ptr<StageTransfer> make_staged_stage_transfer(std::unique_ptr<StageTransfer> host, Device& device,
                                                          Progress& progress, std::size_t max_count);

}  // namespace computron
