#include "computron/runtime/kv_geometry.h"

#include <fmt/format.h>

namespace computron {

KvGeometry KvGeometry::make(const ShardLayout& layout, int block_tokens) {
  const ShardPlan& plan = layout.plan;
  KvGeometry g{.layers = plan.layers,
               .kv_heads = plan.kv_heads,
               .head_dim = plan.config.head_dim,
               .block_tokens = block_tokens,
               .dtype = layout.cache_dtype};
  g.slot_bytes = round_up(2 * static_cast<std::size_t>(g.kv_heads) * g.block_tokens * g.head_dim * size_of(g.dtype),
                          std::size_t{64});
  g.slots_per_frame = static_cast<int>(layout.page_bytes / g.slot_bytes);
  if (g.slots_per_frame < 1) {
    throw ConfigError(fmt::format("a page of {} bytes cannot hold a cache slot of {} bytes; use a larger --page-size",
                                  layout.page_bytes, g.slot_bytes));
  }
  return g;
}

KvCacheView KvGeometry::view(std::byte* pool, std::size_t frame_bytes, std::span<const FrameId> frames) const {
  return {.pool = pool,
          .frame_bytes = frame_bytes,
          .frames = frames,
          .slots_per_frame = slots_per_frame,
          .slot_bytes = slot_bytes,
          .layers = layers,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .block_tokens = block_tokens,
          .dtype = dtype};
}

}  // namespace computron
