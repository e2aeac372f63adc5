#include "src/ops/cpu/tasks.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_integers.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron {
namespace {

using kernels::kRowBlock;

constexpr int kMaxTaskBlocks = 8;
constexpr int kTasksPerThread = 4;
constexpr int kQueriesPerTask = 128, kFewQueriesPerTask = 64;
constexpr int kEncoderQueriesPerTask = 512;  // under all heads: a thread asks for the next head's rows while it attends

static_assert(kTileFloats >= kernels::kMaxGemmRows * kRowBlock);

// Rows of x that take half of a second cache. Fewer than kLeastXRows do not pay for passing the weight again.
constexpr std::size_t kXBytes = std::size_t{1} << 20;
constexpr int kLeastXRows = 80, kXRowsStep = 16;

int blocks_of(std::span<const WeightPanel> panels) {
  int blocks = 0;
  for (const WeightPanel& panel : panels) blocks += ceil_div(panel.rows, kRowBlock);
  return blocks;
}

// The tasks of rows [x_row, x_row + x_rows), `step` rows of a panel each.
void add_tasks(std::span<const WeightPanel> panels, int step, int x_row, int x_rows, std::vector<GemmTask>& tasks) {
  for (int i = 0; i < static_cast<int>(panels.size()); ++i) {
    const int rows = panels[static_cast<std::size_t>(i)].rows;
    for (int row = 0; row < rows; row += step) tasks.push_back({i, row, std::min(step, rows - row), x_row, x_rows});
  }
}

// Deals tasks whose weights follow each other into an order in which threads that take turns get neighbours one after
// the other: at the end of a task its kernel has asked memory for what lies behind it.
void deal(int threads, std::vector<GemmTask>& tasks) {
  if (threads == 1) return;
  const auto count = tasks.size(), hands = static_cast<std::size_t>(threads);
  const std::size_t each = count / hands, with_one_more = count % hands;
  for (std::size_t turn = 0; tasks.size() < 2 * count; ++turn) {
    for (std::size_t hand = 0; hand < (turn < each ? hands : with_one_more); ++hand) {
      tasks.push_back(tasks[hand * each + std::min(hand, with_one_more) + turn]);
    }
  }
  tasks.erase(tasks.begin(), tasks.begin() + static_cast<std::ptrdiff_t>(count));
}

// Halves the last `threads` tasks, then what is left of them, and so on down to a block, so that a thread which
// finishes first does not wait long for the others. The rests follow in the order of their tasks.
void taper(int threads, std::vector<GemmTask>& tasks) {
  if (threads == 1) return;
  std::size_t first = tasks.size() - std::min(tasks.size(), static_cast<std::size_t>(threads));
  for (std::size_t end; first < (end = tasks.size()); first = end) {
    for (std::size_t i = first; i < end; ++i) {
      GemmTask rest = tasks[i];
      const int half = ceil_div(ceil_div(rest.rows, kRowBlock), 2) * kRowBlock;
      if (rest.rows <= half) continue;
      tasks[i].rows = half;
      rest.row += half;
      rest.rows -= half;
      tasks.push_back(rest);
    }
  }
}

// How many rows of x a task takes, if not all. A quantised weight is not expanded more often than it must be.
int rows_that_stay(const Activations& x, bool quantised) {
  const std::size_t row_bytes = x.columns * size_of(x.dtype);
  const auto fitting = static_cast<int>(std::min<std::size_t>(kXBytes / row_bytes, kernels::kMaxGemmRows));
  if (x.rows <= fitting || fitting < (quantised ? kernels::kMaxGemmRows : kLeastXRows)) return x.rows;
  return std::min(round_up(ceil_div(x.rows, ceil_div(x.rows, fitting)), kXRowsStep), fitting);
}

// The same where codes are multiplied as integers: more rows than a call takes are cut, so that each thread makes the
// integers of a row once. Parts are equal but for whole tiles.
int rows_of_integers(const Activations& x) {
  constexpr int kTile = kernels::IntegerRows::kTileRows, kMost = kernels::kMaxGemmRows / kTile * kTile;
  if (x.rows <= kernels::kMaxGemmRows) return x.rows;
  return round_up(ceil_div(x.rows, ceil_div(x.rows, kMost)), kTile);
}

}  // namespace

void cut_gemm(const Weight& weight, bool there, const Activations& x, int threads, std::vector<GemmTask>& tasks) {
  const bool integers = kernels::multiplies_integers(weight.type);
  const int most = integers ? rows_of_integers(x) : rows_that_stay(x, weight.type.quantised());
  const int x_rows = there ? most : x.rows, parts = ceil_div(x.rows, x_rows);
  int blocks = std::max(1, ceil_div(blocks_of(weight.panels) * parts, threads * kTasksPerThread));
  if (parts == 1 || integers) blocks = std::min(blocks, kMaxTaskBlocks);
  tasks.clear();
  for (int m = 0; m < x.rows; m += x_rows) {
    add_tasks(weight.panels, blocks * kRowBlock, m, std::min(x_rows, x.rows - m), tasks);
  }
  if (parts > 1) return;
  if (there) deal(threads, tasks);
  // A task takes all rows of x anew where they are more than one call's.
  if (x.rows <= kernels::kMaxGemmRows) taper(threads, tasks);
}

int gemm_width(int rows, int x_rows) {
  const auto fitting = std::bit_floor(static_cast<unsigned>(kTileFloats / x_rows / kRowBlock));
  const auto there = std::bit_floor(static_cast<unsigned>(rows / kRowBlock));
  return static_cast<int>(std::min({fitting, there, static_cast<unsigned>(kMaxTaskBlocks)})) * kRowBlock;
}

bool cut_attention(const AttentionShape& shape, std::span<const SequenceRows> sequences, int threads,
                   std::vector<AttentionTask>& tasks) {
  const int group = shape.heads / shape.kv_heads;
  long queries = 0;
  for (const SequenceRows& sequence : sequences) queries += static_cast<long>(sequence.rows) * shape.heads;
  const bool many = queries >= static_cast<long>(kQueriesPerTask) * threads * kTasksPerThread;
  const int a_task = many ? kQueriesPerTask : kFewQueriesPerTask, step = std::max(1, a_task / group);
  const int heads_a_task =
      std::max(1, static_cast<int>(sequences.size()) * shape.kv_heads / (threads * kTasksPerThread));
  const int under_all_heads = many && !shape.causal ? kEncoderQueriesPerTask : a_task;
  bool whole = true;
  tasks.clear();
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
    const int rows = sequences[static_cast<std::size_t>(s)].rows;
    if (rows == 0) continue;
    whole = whole && rows <= step;
    const int heads = std::clamp(under_all_heads / (std::min(rows, step) * group), 1, heads_a_task);
    // Tasks of the same heads follow each other, while keys and values are in the second cache; among them later rows,
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
