// Cuts a model into pipeline stages so that the slowest stage is as fast as it can be (AlpaServe, section 4.1, for one
// mesh of equal stages). The embedding belongs to the first stage and the head to the last; each has a block at least.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "computron/placement/profile.h"

namespace computron {

struct LayerCost {
  double compute_s = 0;   // of one pass
  double transfer_s = 0;  // of its weights, over the host link of a rank
};

struct SliceCosts {
  LayerCost embedding;
  std::vector<LayerCost> blocks;
  LayerCost head;
  double hop_s = 0;  // that a stage computes longer if another one follows it
};

// max over stages of max(compute, lambda · transfer): lambda is the share of passes that find their model absent.
double slowest_stage_s(const SliceCosts& costs, std::span<const int> blocks, double lambda);

// Blocks of each of `stages` stages for which slowest_stage_s() is least; of equal ones that with fewest blocks in the
// last stage, then the one before it. Error{kUsage} where there are fewer blocks than stages.
std::vector<int> slice_stages(const SliceCosts& costs, int stages, double lambda);

// What is known of a model layer by layer, with one tp.
struct LayerProfile {
  double time_s = 0;                            // of one request
  std::int64_t bytes = 0;                       // weights that each rank holds
  std::optional<std::int64_t> link_bytes = {};  // what these take over its link where pages are coded; nothing: as many

  std::int64_t bytes_over_link() const { return link_bytes.value_or(bytes); }
};
struct LayeredProfile {
  LayerProfile embedding;
  std::vector<LayerProfile> blocks;
  LayerProfile head;
  double hop_s = 0;  // from one stage to the next: added to the one that sends
};

// The profile of `stages` stages, cut by slice_stages(). A link rate of 0 counts no transfer.
ShapeProfile sliced(const LayeredProfile& model, int stages, double link_bytes_per_s, double lambda);

}  // namespace computron
