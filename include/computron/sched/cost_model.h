// Predicted times of transfers and passes: what policies weigh and what a dry run adds up (src/README.md, "Bounds").
//
//   transfer of b bytes     b ÷ link rate, b being what crosses the link (ShardLayout::link_bytes)
//   pass of m rows, a stage  fixed + max(bytes read ÷ memory rate, m × flops a row ÷ peak), of experts' bytes those
//   that
//                            m rows choose which know nothing of each other: a share 1 - (1 - chosen ÷ experts)^m
//
// Starts from the options and follows what ranks report, so that a rate that was wrong by 2 is right after a few
// steps: a link's rate is the recent bytes over the recent time; a pass is a moving mean a model, stage and power of
// two of rows, interpolated between those sizes that have been seen, and the formula times measured ÷ predicted of the
// nearest one beyond them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "computron/base/types.h"
#include "computron/model/shard_layout.h"

namespace computron {

struct CostOptions {
  double link_bytes_per_s = 10e9;    // of each rank's host link
  double memory_bytes_per_s = 20e9;  // of each rank
  double flops_per_s = 200e9;        // of each rank
  double step_s = 100e-6;            // of a pass on a stage, whatever its size
};

class CostModel {
 public:
  // `layouts[model][stage]`; borrowed only during the call.
  CostModel(const std::vector<std::vector<const ShardLayout*>>& layouts, const CostOptions& options);

  std::size_t models() const { return shards_.size(); }

  // Times in seconds; `rows` at least 1.
  double transfer_s(std::size_t stage, std::size_t bytes) const { return bytes / link_bytes_per_s(stage); }
  double link_bytes_per_s(std::size_t stage) const { return host_links_[stage].bytes / host_links_[stage].busy_s; }
  double stage_pass_s(ModelId model, std::size_t stage, int rows) const;
  // One after the other through all stages.
  double pass_s(ModelId model, int rows) const;
  // Of the slowest stage: what each of many passes in flight adds.
  double bottleneck_s(ModelId model, int rows) const;
  // Compute of so many requests: prompts in as few passes as tokens and sequences allow, then a token a pass for as
  // many sequences as may run.
  struct Work {
    std::size_t requests = 0, prompt_tokens = 0, generated_tokens = 0;
  };
  double backlog_s(ModelId model, const Work& work, int max_batch_tokens, int max_seqs) const;
  // The whole shard of the slowest stage.
  double swap_s(ModelId model) const;

  // `bytes` that crossed the link of a rank of the stage took `busy_s`. Too little to tell is ignored.
  void observe_transfer(std::size_t stage, std::size_t bytes, double busy_s);
  // A pass of so many rows (at least 1) took `seconds` of a stage's compute.
  void observe_pass(ModelId model, std::size_t stage, int rows, double seconds);
  // Whether that has been told of any pass of the model; until then its passes are predicted by the formula.
  bool has_observed_pass(ModelId model) const { return shards_[model].front().sizes_seen != 0; }

 private:
  // Passes of about one size so far.
  struct Seen {
    int count = 0;
    double rows = 0, seconds = 0;  // moving means
  };
  struct Shard {
    double bytes = 0;         // in frames, where passes read them
    double expert_bytes = 0;  // of these, the matrices of experts
    double expert_share = 0;  // that a row chooses
    double link_bytes = 0;    // over the host link
    double flops_per_row = 0;
    std::array<Seen, 32> seen = {};  // [⌊log2 rows⌋]
    std::uint32_t sizes_seen = 0;    // a bit for each of them that has been
  };
  struct HostLink {
    double bytes = 0, busy_s = 0;  // recent ones
  };
  static void add_products(const ShardPlan& plan, const ShardTensor& tensor, Shard& shard);
  // By the formula alone.
  double formula_s(const Shard& shard, double rows) const;

  CostOptions options_;
  std::vector<HostLink> host_links_;        // [stage]
  std::vector<std::vector<Shard>> shards_;  // [model][stage]
};

}  // namespace computron
