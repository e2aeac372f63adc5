// How fast a copy stream of the CPU device is on this machine, now.
#pragma once

#include "computron/device/device.h"

namespace computron {

// One thread, source and destination out of the caches, in a few milliseconds. `link_gb_per_s`: of the emulated link;
// 0: there is none, and the link is what copies plain pages. Error{kSystem} where memory runs out.
CodingRates measure_cpu_coding_rates(double link_gb_per_s);

}  // namespace computron
