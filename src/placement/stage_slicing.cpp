#include "computron/placement/stage_slicing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "computron/base/error.h"

namespace computron {
namespace {

// Costs of contiguous blocks, the embedding with the first and the head with the last, by differences of sums.
class RangeCosts {
 public:
  RangeCosts(const SliceCosts& costs, double lambda)
      : lambda_(lambda), hop_s_(costs.hop_s), up_to_(costs.blocks.size() + 1) {
    for (std::size_t i = 0; i < costs.blocks.size(); ++i) {
      LayerCost own = costs.blocks[i];
      if (i == 0) add(own, costs.embedding);
      if (i + 1 == costs.blocks.size()) add(own, costs.head);
      up_to_[i + 1] = up_to_[i];
      add(up_to_[i + 1], own);
    }
  }
  // Of the blocks [begin, end).
  double of(std::size_t begin, std::size_t end) const {
    const bool last = end + 1 == up_to_.size();
    const double compute = up_to_[end].compute_s - up_to_[begin].compute_s + (last ? 0 : hop_s_);
    const double transfer = up_to_[end].transfer_s - up_to_[begin].transfer_s;
    return std::max(compute, lambda_ * transfer);
  }

 private:
  static void add(LayerCost& to, const LayerCost& what) {
    to.compute_s += what.compute_s;
    to.transfer_s += what.transfer_s;
  }

  double lambda_, hop_s_;
  std::vector<LayerCost> up_to_;
};

}  // namespace

double slowest_stage_s(const SliceCosts& costs, std::span<const int> blocks, double lambda) {
  const RangeCosts ranges(costs, lambda);
  double slowest = 0;
  std::size_t begin = 0;
  for (const int count : blocks) {
    const std::size_t end = begin + static_cast<std::size_t>(count);
    slowest = std::max(slowest, ranges.of(begin, end));
    begin = end;
  }
  ensure(begin == costs.blocks.size(), "stages have other blocks than the model");
  return slowest;
}

// F(s, end) = min over begin of max(F(s - 1, begin), cost of [begin, end)).
std::vector<int> slice_stages(const SliceCosts& costs, int stages, double lambda) {
  const std::size_t blocks = costs.blocks.size();
  if (stages < 1 || static_cast<std::size_t>(stages) > blocks) {
    throw Error(ExitCode::kUsage, fmt::format("{} blocks cannot be cut into {} stages", blocks, stages));
  }
  const RangeCosts ranges(costs, lambda);
  const auto count = static_cast<std::size_t>(stages);
  std::vector<double> best(blocks + 1, std::numeric_limits<double>::infinity());
  best[0] = 0;
  std::vector<std::vector<std::size_t>> begins(count, std::vector<std::size_t>(blocks + 1));
  for (std::size_t s = 0; s < count; ++s) {
    std::vector<double> next(blocks + 1, std::numeric_limits<double>::infinity());
    for (std::size_t end = s + 1; end <= blocks; ++end) {
      for (std::size_t begin = s; begin < end; ++begin) {
        const double slowest = std::max(best[begin], ranges.of(begin, end));
        if (slowest > next[end]) continue;
        next[end] = slowest;
        begins[s][end] = begin;
      }
    }
    best = next;
  }
  std::vector<int> result(count);
  std::size_t end = blocks;
  for (std::size_t s = count; s-- > 0; end = begins[s][end]) result[s] = static_cast<int>(end - begins[s][end]);
  return result;
}

ShapeProfile sliced(const LayeredProfile& model, int stages, double link_bytes_per_s, double lambda) {
  const auto cost = [link_bytes_per_s](const LayerProfile& layer) {
    const auto bytes = static_cast<double>(layer.bytes_over_link());
    const double transfer_s = link_bytes_per_s > 0 ? bytes / link_bytes_per_s : 0;
    return LayerCost{.compute_s = layer.time_s, .transfer_s = transfer_s};
  };
  SliceCosts costs{.embedding = cost(model.embedding), .blocks = {}, .head = cost(model.head), .hop_s = model.hop_s};
  std::ranges::transform(model.blocks, std::back_inserter(costs.blocks), cost);
  ShapeProfile profile{.stage_s = {}, .stage_bytes = {}, .layers = slice_stages(costs, stages, lambda)};
  auto block = model.blocks.begin();
  for (int stage = 0; stage < stages; ++stage) {
    const bool first = stage == 0, last = stage + 1 == stages;
    double time_s = (first ? model.embedding.time_s : 0) + (last ? model.head.time_s : model.hop_s);
    std::int64_t bytes = (first ? model.embedding.bytes : 0) + (last ? model.head.bytes : 0);
    std::int64_t link_bytes =
        (first ? model.embedding.bytes_over_link() : 0) + (last ? model.head.bytes_over_link() : 0);
    for (const auto end = block + profile.layers[static_cast<std::size_t>(stage)]; block != end; ++block) {
      time_s += block->time_s;
      bytes += block->bytes;
      link_bytes += block->bytes_over_link();
    }
    profile.stage_s.push_back(static_cast<float>(time_s));
    profile.stage_bytes.push_back(bytes);
    profile.link_bytes.push_back(link_bytes);
  }
  if (profile.link_bytes == profile.stage_bytes) profile.link_bytes.clear();
  return profile;
}

}  // namespace computron
