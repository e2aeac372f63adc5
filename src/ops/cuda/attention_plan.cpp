#include "src/ops/cuda/attention_plan.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "computron/base/types.h"

namespace computron {

using kernels::cuda::AttentionRow;
using kernels::cuda::kTileQueries;

AttentionPlan AttentionPlan::make(bool causal, std::span<const SequenceRows> sequences, int batch_rows,
                                  int block_tokens, int tile_keys) {
  AttentionPlan plan;
  plan.tile_keys = tile_keys;
  plan.rows.resize(static_cast<std::size_t>(batch_rows), AttentionRow{0, 0, 0});
  for (const SequenceRows& sequence : sequences) plan.add(causal, sequence, block_tokens);
  // The longest first, so that no block begins late what takes long.
  const auto keys = [&](const kernels::cuda::QueryTile& tile) {
    const int last = tile.row + tile.rows - 1;
    return plan.rows[static_cast<std::size_t>(last)].keys;
  };
  std::ranges::stable_sort(plan.tiles, std::greater<>(), keys);
  for (int row = 0; row < batch_rows; ++row) {
    if (plan.rows[static_cast<std::size_t>(row)].keys == 0) plan.row_ids.push_back(row);
  }
  return plan;
}

int AttentionPlan::split_class() const {
  const auto whole = static_cast<int>(std::bit_ceil(static_cast<unsigned>(splits))), part = whole / 4 * 3;
  return splits <= part ? part : whole;
}

void AttentionPlan::add(bool causal, const SequenceRows& sequence, int block_tokens) {
  const int first_block = static_cast<int>(blocks.size()), end = sequence.start + sequence.rows;
  const auto used = sequence.blocks.first(static_cast<std::size_t>(ceil_div(end, block_tokens)));
  blocks.insert(blocks.end(), used.begin(), used.end());
  one_row_each &= sequence.rows == 1;
  for (const std::uint32_t block : used) largest_block = std::max(largest_block, block);
  for (int i = 0; i < sequence.rows; ++i) {
    const int position = sequence.start + i, row = sequence.row + i;
    rows[static_cast<std::size_t>(row)] = {position, causal ? position + 1 : end, first_block};
  }
  if (tile_keys > 0 && sequence.rows > kMaxDecodeRows) {
    for (int i = 0; i < sequence.rows; i += kTileQueries) {
      tiles.push_back({sequence.row + i, std::min(kTileQueries, sequence.rows - i)});
    }
    return;
  }
  for (int i = 0; i < sequence.rows; ++i) {
    const int row = sequence.row + i;
    row_ids.push_back(row);
    splits = std::max(splits, kernels::cuda::split_count(rows[static_cast<std::size_t>(row)].keys));
  }
}

}  // namespace computron
