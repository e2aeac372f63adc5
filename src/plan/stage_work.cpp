#include "computron/plan/stage_work.h"

#include <string>

#include "computron/runtime/kv_geometry.h"
#include "computron/sched/stage_pool.h"

namespace computron {
namespace {

// Keys and values of a token, as many as fill the slots of a block.
std::int64_t cache_token_bytes(const ShardLayout& layout) {
  if (!layout.plan.config.causal) return 0;
  const KvGeometry cache = KvGeometry::make(layout);
  return static_cast<std::int64_t>(cache.slot_bytes * static_cast<std::size_t>(cache.layers) /
                                   static_cast<std::size_t>(cache.block_tokens));
}

}  // namespace

StageWork stage_work(const ShardLayout& layout) {
  const ShardPlan& plan = layout.plan;
  const int tp = plan.mesh.tp;
  StageWork work{.cache_token_bytes = static_cast<double>(cache_token_bytes(layout)),
                 .layers = plan.layers,
                 .width = plan.config.hidden,
                 .tp = tp,
                 .receives = plan.stage > 0};
  for (const ShardTensor& tensor : plan.tensors) {
    const bool looked_up = tensor.name == "embedding.tokens.weight";  // and only a tied head multiplies with it
    if (!tensor.is_multiplied() || looked_up) continue;
    const double values = static_cast<double>(tensor.rows) * tensor.columns;
    const double bytes = tensor.type.bytes(tensor.rows, tensor.columns), share = plan.share_of_rows(tensor);
    work.weight_bytes += bytes;
    work.flops_per_row += 2 * values * share;
    if (share == 1) continue;
    work.expert_bytes += bytes;
    work.expert_share = share;
  }
  // Behind attention and behind the MLP of each layer, and in norms over the heads of all ranks; the embedding, whose
  // rows are divided among ranks.
  const int of_layer = plan.config.query_key_norm == QueryKeyNorm::kWidth ? 3 : 2;
  work.sums = tp > 1 ? of_layer * plan.layers + (plan.embeds() ? 1 : 0) : 0;
  return work;
}

ShapeProfile sizes_of(const std::vector<const ShardLayout*>& stages) {
  ShapeProfile profile;
  for (const ShardLayout* layout : stages) {
    profile.stage_bytes.push_back(static_cast<std::int64_t>(layout->total_used_bytes()));
    profile.link_bytes.push_back(static_cast<std::int64_t>(layout->total_link_bytes()));
    profile.frame_bytes.push_back(static_cast<std::int64_t>(layout->frame_bytes()));
    profile.operation_bytes.push_back(static_cast<std::int64_t>(layout->page_bytes) * uses_together(*layout));
    if (!layout->plan.config.pools()) profile.cache_token_bytes.push_back(cache_token_bytes(*layout));
  }
  if (profile.link_bytes == profile.stage_bytes) profile.link_bytes.clear();
  return profile;
}

}  // namespace computron
