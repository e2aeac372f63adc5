// Cuts a model into pipeline stages so that the slowest stage is as fast as it can be (AlpaServe, section 4.1, for one
// mesh of equal stages). The embedding belongs to the first stage and the head to the last; each has a block at least.
#pragma once

#include <span>
#include <vector>

namespace computron {

struct LayerCost {
  double compute_s = 0;   // of one pass
  double transfer_s = 0;  // of its weights, over the host link of a rank
};

struct SliceCosts {
  LayerCost embedding;
  std::vector<LayerCost> blocks;
  LayerCost head;
};

// max over stages of max(compute, lambda · transfer): lambda is the share of passes that find their model absent.
double slowest_stage_s(const SliceCosts& costs, std::span<const int> blocks, double lambda);

// Blocks of each of `stages` stages for which slowest_stage_s() is least; of equal ones that with fewest blocks in the
// last stage, then the one before it. Error{kUsage} where there are fewer blocks than stages.
std::vector<int> slice_stages(const SliceCosts& costs, int stages, double lambda);

}  // namespace computron
