// How the work of one operation is cut into the items of one parallel_for. No cut changes a bit of the result.
#pragma once

#include <span>
#include <vector>

#include "computron/ops/ops.h"

namespace computron {

// Rows [row, row + rows) of a panel times rows [x_row, x_row + x_rows) of x. Those of a panel are whole 64-row blocks,
// except that a panel's last may hold fewer real rows.
struct GemmTask {
  int panel = 0;
  int row = 0;
  int rows = 0;
  int x_row = 0;
  int x_rows = 0;
};

// About four tasks a thread where there is that much to do. x.rows > 0. Where x is larger than the second cache and all
// panels are `there`, a task takes rows of x that stay in it while the weight passes, which is read ahead. Where rows
// become integers (kernels/cpu/gemm_integers.h), it takes one call's, and 512 rows of a panel at most. Else all
// rows of x pass 512 rows of a panel at most: where all panels are there, in an order that gives threads which take
// turns neighbours one after the other; else in the order of panels, so that the first tasks need the first pages.
// Where a call of the kernel takes all rows of x, the last task of each thread is halved, its rest again, down to a
// block of 64 rows; the rests come behind all others. Replaces the content of `tasks`.
void cut_gemm(const Weight& weight, bool there, const Activations& x, int threads, std::vector<GemmTask>& tasks);

// How many of `rows` weight rows (whole blocks) to multiply by `x_rows` rows at once: the tile [x_rows, ..] stays in
// the second cache.
int gemm_width(int rows, int x_rows);
// Floats of the largest tile that gemm_width leads to.
inline constexpr int kTileFloats = 32768;

// Rows [row, row + rows) of sequences[sequence] (counted from its first) under key/value heads [kv_head, kv_head_end),
// one after the other.
struct AttentionTask {
  int sequence = 0;
  int kv_head = 0;
  int kv_head_end = 0;
  int row = 0;
  int rows = 0;
};

// About 128 queries (row × head) a task, or 64 where there would be less than four tasks a thread otherwise; of several
// key/value heads where rows are few, and 512 queries under several heads of an encoder. Returns whether every
// sequence's rows are in one task.
bool cut_attention(const AttentionShape& shape, std::span<const SequenceRows> sequences, int threads,
                   std::vector<AttentionTask>& tasks);

// Rows, or outputs, [first, first + count) of parts[part] of an adapter's products.
struct LowRankTask {
  std::size_t part = 0;
  int first = 0;
  int count = 0;
};

}  // namespace computron
