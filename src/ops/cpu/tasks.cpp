#include "src/ops/cpu/tasks.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace computron {
namespace {

using kernels::kRowBlock;

constexpr int kMaxTaskBlocks = 8;
constexpr int kTasksPerThread = 4;
constexpr int kQueriesPerTask = 64;

static_assert(kTileFloats >= kernels::kMaxGemmRows * kRowBlock);

}  // namespace

void cut_gemm(std::span<const WeightPanel> panels, int threads, std::vector<GemmTask>& tasks) {
  int blocks = 0;
  for (const WeightPanel& panel : panels) blocks += ceil_div(panel.rows, kRowBlock);
  const int step = std::clamp(ceil_div(blocks, threads * kTasksPerThread), 1, kMaxTaskBlocks) * kRowBlock;
  tasks.clear();
  for (int i = 0; i < static_cast<int>(panels.size()); ++i) {
    const int rows = panels[static_cast<std::size_t>(i)].rows;
    for (int row = 0; row < rows; row += step) tasks.push_back({i, row, std::min(step, rows - row)});
  }
}

int gemm_width(int rows, int x_rows) {
  const auto fitting = std::bit_floor(static_cast<unsigned>(kTileFloats / x_rows / kRowBlock));
  const auto there = std::bit_floor(static_cast<unsigned>(rows / kRowBlock));
  return static_cast<int>(std::min({fitting, there, static_cast<unsigned>(kMaxTaskBlocks)})) * kRowBlock;
}

bool cut_attention(const AttentionShape& shape, std::span<const SequenceRows> sequences, int threads,
                   std::vector<AttentionTask>& tasks) {
  const int group = shape.heads / shape.kv_heads;
  const int step = std::max(1, kQueriesPerTask / group);
  const int heads_a_task =
      std::max(1, static_cast<int>(sequences.size()) * shape.kv_heads / (threads * kTasksPerThread));
  bool whole = true;
  tasks.clear();
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
    const int rows = sequences[static_cast<std::size_t>(s)].rows;
    if (rows == 0) continue;
    whole = whole && rows <= step;
    const int heads = std::clamp(kQueriesPerTask / (std::min(rows, step) * group), 1, heads_a_task);
    // Tasks of one head follow each other, while its keys and values are in the second cache; among them later rows,
    // which see more keys, go first, so that the last tasks taken are short ones.
    for (int h = 0; h < shape.kv_heads; h += heads) {
      for (int row = (rows - 1) / step * step; row >= 0; row -= step) {
        tasks.push_back({s, h, std::min(h + heads, shape.kv_heads), row, std::min(step, rows - row)});
      }
    }
  }
  return whole;
}

}  // namespace computron
