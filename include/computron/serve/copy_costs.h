// What copies and events cost on a rank, as far as the size of pages depends on it (--page-size auto).
#pragma once

#include <span>

#include "computron/device/device.h"
#include "computron/placement/page_size.h"

namespace computron {

struct MeasuredCosts {
  CopyCosts copies;               // over the host link; an event: recorded there, waited for by the compute stream
  double compute_s_per_byte = 0;  // of weights that a pass of few rows reads once
};

// Of this device, in a few hundredths of a second on links of GB/s: copies of up to 32 MiB until one takes long enough
// to be timed, and the best of three of each kind. Needs at most 64 MiB of device memory meanwhile, and as
// much of host memory; a copy within the device reads and writes, and so counts as twice its bytes.
MeasuredCosts measure_costs(Device& device, Progress& progress);

// Of all ranks the slowest, cost by cost.
MeasuredCosts slowest(std::span<const MeasuredCosts> ranks);

}  // namespace computron
