// Predicted times of transfers and passes: what policies weigh and what a dry run adds up.
//
//   transfer of b bytes     b ÷ link rate
//   pass of m rows, a stage  fixed + max(shard bytes ÷ memory rate, m × flops a row ÷ peak), as in design.md section 8
//
// Starts from the options and follows what ranks report: a link's rate directly, passes by a factor a model, stage and
// side of the maximum, so that a guess that was wrong by 2 is right after a few steps.
#pragma once

#include <cstddef>
#include <vector>

#include "computron/base/types.h"
#include "computron/model/image.h"

namespace computron {

struct CostOptions {
  double link_bytes_per_s = 10e9;    // of each rank
  double memory_bytes_per_s = 20e9;  // of each rank
  double flops_per_s = 200e9;        // of each rank
  double step_s = 100e-6;            // of a pass on a stage, whatever its size
};

class CostModel {
 public:
  // `images[model][stage]`; borrowed only during the call.
  CostModel(const std::vector<std::vector<const Image*>>& images, const CostOptions& options);

  double transfer_s(std::size_t stage, std::size_t bytes) const { return bytes / link_bytes_per_s_[stage]; }
  double link_bytes_per_s(std::size_t stage) const { return link_bytes_per_s_[stage]; }
  double stage_pass_s(ModelId model, std::size_t stage, int rows) const;
  // One after the other through all stages.
  double pass_s(ModelId model, int rows) const;
  // Of the slowest stage: what each of many passes in flight adds.
  double bottleneck_s(ModelId model, int rows) const;
  // The whole shard of the slowest stage.
  double swap_s(ModelId model) const;

  // `bytes` took the link of a rank of the stage `busy_s`. Too little to tell is ignored.
  void observe_transfer(std::size_t stage, std::size_t bytes, double busy_s);
  void observe_pass(ModelId model, std::size_t stage, int rows, double seconds);

 private:
  struct Shard {
    double bytes = 0;
    double flops_per_row = 0;
    double read_factor = 1, compute_factor = 1;  // measured ÷ predicted, of either side of the maximum
    double read_s(const CostOptions& o) const { return read_factor * (o.step_s + bytes / o.memory_bytes_per_s); }
    double compute_s(const CostOptions& o, int rows) const {
      return compute_factor * (o.step_s + rows * flops_per_row / o.flops_per_s);
    }
  };

  CostOptions options_;
  std::vector<double> link_bytes_per_s_;  // [stage]
  std::vector<std::vector<Shard>> shards_;  // [model][stage]
};

}  // namespace computron
