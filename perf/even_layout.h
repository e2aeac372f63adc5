// The layout of a shard whose layers are a page each, for measurements that schedule and compute nothing.
#pragma once

#include "computron/model/shard_layout.h"

namespace computron {

// `pages` full pages of `page_bytes`; `layers` layers, whose keys and values have `kv_heads` heads of 128 numbers.
inline ShardLayout even_layout(int pages, std::size_t page_bytes, int layers, int kv_heads) {
  ShardLayout layout;
  layout.page_bytes = page_bytes;
  layout.plan.layers = layers;
  layout.plan.kv_heads = kv_heads;
  layout.plan.config.head_dim = 128;
  layout.types = DType::kF16;
  for (int page = 0; page < pages; ++page) {
    layout.used_bytes.push_back(page_bytes);
    layout.uses.push_back(static_cast<PageId>(page));
    layout.over_before.push_back(page - 1);
  }
  return layout;
}

}  // namespace computron
