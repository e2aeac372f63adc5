// The tables of an AttentionPlan on the device.
#pragma once

#include <cstdint>
#include <span>

#include "computron/kernels/types.h"
#include "src/ops/cuda/attention_plan.h"

namespace computron {

struct AttentionTables {
  AttentionPlan plan;
  const kernels::cuda::AttentionRow* rows = nullptr;  // null: no tables
  const int* row_ids = nullptr;
  const kernels::cuda::QueryTile* tiles = nullptr;
  const std::uint32_t* blocks = nullptr;
  const FrameId* frames = nullptr;

  AttentionTables() = default;
  // Borrows the sequences and the cache's list of frames. `shared_bytes`: of shared memory, that a block of this device
  // may have. Error{kInternal} for blocks that the cache does not have.
  AttentionTables(std::span<const SequenceRows> sequences, const KvCacheView& cache, int batch_rows, bool causal,
                  int shared_bytes);

  // Whether they are made of these: the same spans hold the same until the stream has run.
  bool are_of(std::span<const SequenceRows> sequences, const KvCacheView& cache, bool causal) const;
  // place(values): where they are on the device.
  template <class Place>
  void put(Place&& place) {
    rows = place(std::span<const kernels::cuda::AttentionRow>(plan.rows));
    row_ids = place(std::span<const int>(plan.row_ids));
    tiles = place(std::span<const kernels::cuda::QueryTile>(plan.tiles));
    blocks = place(std::span<const std::uint32_t>(plan.blocks));
    frames = place(cache_frames_);
  }

 private:
  std::span<const SequenceRows> sequences_;
  std::span<const FrameId> cache_frames_;
  bool causal_ = true;
};

}  // namespace computron
