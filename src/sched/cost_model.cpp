#include "computron/sched/cost_model.h"

#include <algorithm>

namespace computron {
namespace {

constexpr double kWeight = 0.25;  // of a new observation
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

void move_towards(double& value, double observed) { value += kWeight * (observed - value); }

double flops_per_row(const ShardPlan& plan) {
  double flops = 0;
  for (const ShardTensor& tensor : plan.tensors) {
    if (tensor.role == TensorRole::kGemmWeight) flops += 2.0 * tensor.rows * tensor.columns;
  }
  return flops;
}

}  // namespace

CostModel::CostModel(const std::vector<std::vector<const Image*>>& images, const CostOptions& options)
    : options_(options), link_bytes_per_s_(images.front().size(), options.link_bytes_per_s) {
  for (const auto& stages : images) {
    auto& shards = shards_.emplace_back();
    for (const Image* image : stages) {
      shards.push_back({.bytes = static_cast<double>(image->total_used_bytes()),
                        .flops_per_row = flops_per_row(image->plan)});
    }
  }
}

double CostModel::stage_pass_s(ModelId model, std::size_t stage, int rows) const {
  const Shard& shard = shards_[model][stage];
  return std::max(shard.read_s(options_), shard.compute_s(options_, rows));
}

double CostModel::pass_s(ModelId model, int rows) const {
  double seconds = 0;
  for (std::size_t stage = 0; stage < link_bytes_per_s_.size(); ++stage) seconds += stage_pass_s(model, stage, rows);
  return seconds;
}

double CostModel::bottleneck_s(ModelId model, int rows) const {
  double seconds = 0;
  for (std::size_t stage = 0; stage < link_bytes_per_s_.size(); ++stage) {
    seconds = std::max(seconds, stage_pass_s(model, stage, rows));
  }
  return seconds;
}

double CostModel::swap_s(ModelId model) const {
  double seconds = 0;
  for (std::size_t stage = 0; stage < link_bytes_per_s_.size(); ++stage) {
    seconds = std::max(seconds, shards_[model][stage].bytes / link_bytes_per_s_[stage]);
  }
  return seconds;
}

void CostModel::observe_transfer(std::size_t stage, std::size_t bytes, double busy_s) {
  if (bytes < kLeastBytes || busy_s <= 0) return;
  move_towards(link_bytes_per_s_[stage], bytes / busy_s);
}

void CostModel::observe_pass(ModelId model, std::size_t stage, int rows, double seconds) {
  if (seconds <= 0) return;
  Shard& shard = shards_[model][stage];
  const double read_s = shard.read_s(options_), compute_s = shard.compute_s(options_, rows);
  double& factor = read_s >= compute_s ? shard.read_factor : shard.compute_factor;
  move_towards(factor, factor * seconds / std::max(read_s, compute_s));
}

}  // namespace computron
