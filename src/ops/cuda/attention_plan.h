// Which kernel attends which rows of a batch, and the tables that it is told them by.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "computron/kernels/types.h"
#include "kernels/cuda/attention.h"

namespace computron {

struct AttentionPlan {
  std::vector<kernels::cuda::AttentionRow> rows;  // of the batch; keys 0: of no sequence
  std::vector<int> row_ids;                       // for split-KV decode
  std::vector<kernels::cuda::QueryTile> tiles;    // for tiled prefill
  std::vector<std::uint32_t> blocks;              // of all sequences
  std::uint32_t largest_block = 0;
  int splits = 1;     // KV splits of the longest of row_ids
  int tile_keys = 0;  // that `tiles` meet in a round
  // No row sees what another row of the batch puts into the cache: every sequence has one row, and the blocks that
  // sequences share were full before the pass (CacheBlocks::acquire_prefix).
  bool one_row_each = true;

  // A sequence of up to this many rows is decoded row by row: tensor cores would be idle for most of a tile.
  static constexpr int kMaxDecodeRows = 8;

  // `tile_keys`: of a round of tiled prefill (kernels::cuda::prefill_keys); 0: no row goes there, because the cache has
  // elements of four bytes or a block has no room for a tile. Rows of no sequence are decoded, too, and see nothing, so
  // that the work depends on `batch_rows` where all others are decoded.
  static AttentionPlan make(bool causal, std::span<const SequenceRows> sequences, int batch_rows, int block_tokens,
                            int tile_keys);
  // What blocks are launched for, 1, 2, 3, 4, 6, 8, 12..: growing sequences leave it as it is for most of the time.
  // Those of splits that are not there leave at once.
  int split_class() const;

 private:
  void add(bool causal, const SequenceRows& sequence, int block_tokens);
};

}  // namespace computron
