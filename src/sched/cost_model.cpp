#include "computron/sched/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace computron {
namespace {

constexpr int kRecentPasses = 64;
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;   // also what the options' link rate counts for
constexpr std::size_t kRecentBytes = std::size_t{8} << 30;  // of a link; then half of them are forgotten

}  // namespace

CostModel::CostModel(const std::vector<std::vector<const ShardLayout*>>& layouts, const CostOptions& options)
    : options_(options),
      host_links_(layouts.front().size(), {.bytes = kLeastBytes, .busy_s = kLeastBytes / options.link_bytes_per_s}) {
  for (const auto& stages : layouts) {
    auto& shards = shards_.emplace_back();
    for (const ShardLayout* layout : stages) {
      Shard& shard = shards.emplace_back();
      shard.bytes = static_cast<double>(layout->total_used_bytes());
      shard.link_bytes = static_cast<double>(layout->total_link_bytes());
      for (const ShardTensor& tensor : layout->plan.tensors) add_products(layout->plan, tensor, shard);
    }
  }
}

void CostModel::add_products(const ShardPlan& plan, const ShardTensor& tensor, Shard& shard) {
  if (!tensor.is_multiplied()) return;
  const double share = plan.share_of_rows(tensor);
  shard.flops_per_row += 2.0 * tensor.rows * tensor.columns * share;
  if (share == 1) return;
  shard.expert_bytes += static_cast<double>(tensor.type.bytes(tensor.rows, tensor.columns));
  shard.expert_share = share;
}

double CostModel::formula_s(const Shard& shard, double rows) const {
  const double read = shard.bytes - shard.expert_bytes * std::pow(1 - shard.expert_share, rows);
  return options_.step_s +
         std::max(read / options_.memory_bytes_per_s, rows * shard.flops_per_row / options_.flops_per_s);
}

// Passes of other powers of two have fewer rows, or more.
double CostModel::stage_pass_s(ModelId model, std::size_t stage, int rows) const {
  const Shard& shard = shards_[model][stage];
  const Seen *below = nullptr, *above = nullptr;  // the nearest ones
  const std::uint32_t its_own = std::bit_floor(static_cast<std::uint32_t>(rows));
  const std::uint32_t fewer = shard.sizes_seen & (its_own - 1), more = shard.sizes_seen & ~(its_own - 1) & ~its_own;
  if (fewer != 0) below = &shard.seen[std::bit_width(fewer) - 1];
  if (more != 0) above = &shard.seen[std::countr_zero(more)];
  if ((shard.sizes_seen & its_own) != 0) {
    const Seen& seen = shard.seen[std::countr_zero(its_own)];
    (seen.rows <= rows ? below : above) = &seen;
  }
  if (below != nullptr && above != nullptr) {
    return below->seconds + (above->seconds - below->seconds) * (rows - below->rows) / (above->rows - below->rows);
  }
  const Seen* nearest = below != nullptr ? below : above;
  const double factor = nearest != nullptr ? nearest->seconds / formula_s(shard, nearest->rows) : 1;
  return factor * formula_s(shard, rows);
}

double CostModel::pass_s(ModelId model, int rows) const {
  double seconds = 0;
  for (std::size_t stage = 0; stage < host_links_.size(); ++stage) seconds += stage_pass_s(model, stage, rows);
  return seconds;
}

double CostModel::bottleneck_s(ModelId model, int rows) const {
  double seconds = 0;
  for (std::size_t stage = 0; stage < host_links_.size(); ++stage) {
    seconds = std::max(seconds, stage_pass_s(model, stage, rows));
  }
  return seconds;
}

double CostModel::backlog_s(ModelId model, const Work& work, int max_batch_tokens, int max_seqs) const {
  const auto requests = static_cast<double>(work.requests), prompt = static_cast<double>(work.prompt_tokens);
  const double together = std::clamp(requests, 1.0, static_cast<double>(max_seqs));
  const double prefills = std::max(std::ceil(prompt / max_batch_tokens), std::ceil(requests / together));
  const double decodes = std::max(static_cast<double>(work.generated_tokens) - requests, 0.0) / together;
  const int prefill_rows = std::max(static_cast<int>(prompt / std::max(prefills, 1.0)), 1);
  return pass_s(model, prefill_rows) + (prefills - 1) * bottleneck_s(model, prefill_rows) +
         decodes * pass_s(model, static_cast<int>(together));
}

double CostModel::swap_s(ModelId model) const {
  double seconds = 0;
  for (std::size_t stage = 0; stage < host_links_.size(); ++stage) {
    seconds = std::max(seconds, shards_[model][stage].link_bytes / link_bytes_per_s(stage));
  }
  return seconds;
}

void CostModel::observe_transfer(std::size_t stage, std::size_t bytes, double busy_s) {
  if (bytes < kLeastBytes || busy_s <= 0) return;
  HostLink& link = host_links_[stage];
  link.bytes += static_cast<double>(bytes);
  link.busy_s += busy_s;
  if (link.bytes < kRecentBytes) return;
  link.bytes /= 2;
  link.busy_s /= 2;
}

void CostModel::observe_pass(ModelId model, std::size_t stage, int rows, double seconds) {
  if (seconds <= 0) return;
  Shard& shard = shards_[model][stage];
  Seen& seen = shard.seen[std::bit_width(static_cast<unsigned>(rows)) - 1];
  shard.sizes_seen |= std::bit_floor(static_cast<std::uint32_t>(rows));
  seen.count = std::min(seen.count + 1, kRecentPasses);
  seen.rows += (rows - seen.rows) / seen.count;
  seen.seconds += (seconds - seen.seconds) / seen.count;
}

}  // namespace computron
