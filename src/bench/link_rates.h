// What a LinkProbe finds, as the metrics of a benchmark use it.
#pragma once

#include <vector>

namespace computron {

// Bytes a second of one rank, by round: a shard in one copy, page by page through the swapper, and in one copy past an
// emulated link. `memory` is `plain` where no link is emulated.
struct LinkRates {
  std::vector<double> plain, fetch, memory;
};

}  // namespace computron
