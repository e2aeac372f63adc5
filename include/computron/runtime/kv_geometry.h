// How a model's key/value cache is cut into slots on one stage.
#pragma once

#include <cstddef>

#include "computron/model/shard_layout.h"
#include "computron/ops/ops.h"

namespace computron {

// A slot holds keys and values of block_tokens tokens of one layer and never crosses a frame's end; the model's logical
// block b takes the slots [b × layers, (b + 1) × layers) of its list of frames.
struct KvGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 0;
  DType dtype = DType::kF32;
  std::size_t slot_bytes = 0;
  int slots_per_frame = 0;

  // The same block_tokens on every stage of a model, so that a logical block is one everywhere. ConfigError when
  // a frame cannot hold even one slot.
  static KvGeometry make(const ShardLayout& layout, int block_tokens = kBlockTokens);
  static constexpr int kBlockTokens = 16;

  // Frames that hold `blocks` logical blocks.
  int frames_for(int blocks) const { return ceil_div(blocks * layers, slots_per_frame); }
  // Logical blocks that `frames` frames hold.
  int blocks_in(int frames) const { return frames * slots_per_frame / layers; }

  KvCacheView view(std::byte* pool, std::size_t frame_bytes, std::span<const FrameId> frames) const;
};

}  // namespace computron
