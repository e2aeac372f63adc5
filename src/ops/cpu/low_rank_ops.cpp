// What low-rank adapters add to products, for all rows of a batch in one operation: few rows of each of many adapters
// would otherwise cost a fork and a join each.
#include <algorithm>

#include "computron/base/convert.h"
#include "kernels/cpu/low_rank.h"
#include "src/ops/checks.h"
#include "src/ops/cpu/cpu_ops.h"
#include "src/ops/cpu/rows.h"

namespace computron {
namespace {

static_assert(kernels::kLowRankOutputs == kLowRankBlock && kernels::kLowRankSums == kLowRankChains);

constexpr int kRowsOfATask = 16;      // of x, which read A together
constexpr int kOutputsOfATask = 512;  // whose part of B stays in the first cache while rows pass
constexpr int kOutputsOfARow = 2048;  // which reads B once

void cut(std::size_t part, int all, int count, std::vector<LowRankTask>& tasks) {
  for (int first = 0; first < all; first += count) tasks.push_back({part, first, std::min(count, all - first)});
}

// Replaces the content of `tasks`.
void cut_rows(const std::vector<LowRankPart>& parts, std::vector<LowRankTask>& tasks) {
  tasks.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) cut(i, parts[i].rows, kRowsOfATask, tasks);
}
void cut_outputs(const std::vector<LowRankPart>& parts, std::vector<LowRankTask>& tasks) {
  tasks.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TablePanel& last = parts[i].table.panels.back();
    cut(i, last.row_begin + last.rows, parts[i].rows == 1 ? kOutputsOfARow : kOutputsOfATask, tasks);
  }
}

// What a part's panels wait for.
class Marks {
 public:
  explicit Marks(const std::vector<LowRankPart>& parts) {
    for (const LowRankPart& part : parts) {
      begins_.push_back(marks_.size());
      for (const TablePanel& panel : part.table.panels) marks_.push_back(mark_of(panel.ready));
    }
    begins_.push_back(marks_.size());
  }

  void wait(CpuContext& context, int thread, std::size_t part) const {
    for (std::size_t i = begins_[part]; i < begins_[part + 1]; ++i) context.wait(thread, marks_[i]);
  }

 private:
  std::vector<CpuEventMark> marks_;
  std::vector<std::size_t> begins_;  // [part], and the end
};

// Rows [row, row + rows) of x as float32, perhaps in `wide`.
const float* widened(const Activations& x, int row, int rows, std::vector<float>& wide) {
  if (x.dtype == DType::kF32) return f32_row(x, row);
  const Activations own = x.row_range(row, rows);
  wide.resize(static_cast<std::size_t>(rows) * x.columns);
  convert_elements(own.data, x.dtype, reinterpret_cast<std::byte*>(wide.data()), DType::kF32, wide.size());
  return wide.data();
}

void add_in(const Activations& x, const LowRankPart& part, int first, int rows, std::vector<float>& wide) {
  const float* const values = widened(x, part.row + first, rows, wide);
  float* const sums = f32_row(part.sums, first);
  if (!part.continues) std::fill_n(sums, static_cast<std::size_t>(rows) * part.sums.columns, 0.0f);
  for (const TablePanel& panel : part.table.panels) {
    kernels::add_low_rank_in(values + panel.row_begin, x.columns, rows, panel.rows, panel.data, part.table.dtype,
                             part.rank(), sums);
  }
}

// Outputs [first, first + count) of those of the part's panels.
void add_out(const LowRankPart& part, int first, int count, const Activations& out) {
  const std::size_t row_bytes = static_cast<std::size_t>(part.rank()) * size_of(part.table.dtype);
  for (const TablePanel& panel : part.table.panels) {
    const int begin = std::max(first, panel.row_begin);
    const int end = std::min(first + count, panel.row_begin + panel.rows);
    if (begin >= end) continue;
    kernels::add_low_rank_out(f32_row(part.sums, 0), part.rows, part.rank(),
                              panel.data + static_cast<std::size_t>(begin - panel.row_begin) * row_bytes,
                              part.table.dtype, end - begin, f32_row(out, part.row) + part.column + begin, out.columns);
  }
}

}  // namespace

void CpuOps::add_low_rank_in(Stream& stream, Activations x, std::vector<LowRankPart> parts) {
  for (const LowRankPart& part : parts) check_low_rank_in(x, part);
  ensure(x.dtype != DType::kF16, "an adapter is not multiplied with float16");
  Marks marks_of_parts(parts);
  cpu(stream).launch([=, this, marks = std::move(marks_of_parts), parts = std::move(parts)](CpuContext& context) {
    reserve_workspaces(context.threads());
    cut_rows(parts, low_rank_tasks_);
    context.parallel_for(static_cast<int>(low_rank_tasks_.size()), [&](int thread, int i) {
      const auto [part, first, count] = low_rank_tasks_[static_cast<std::size_t>(i)];
      marks.wait(context, thread, part);
      add_in(x, parts[part], first, count, workspace(thread).wide);
      if (thread == 0) context.poll();
    });
  });
}

void CpuOps::scale_low_rank(Stream& stream, std::vector<LowRankScale> scales) {
  std::vector<CpuEventMark> marks;
  for (const LowRankScale& scale : scales) {
    check_scale_low_rank(scale);
    marks.push_back(mark_of(scale.factor.ready));
  }
  cpu(stream).launch([marks = std::move(marks), scales = std::move(scales)](CpuContext& context) {
    for (const CpuEventMark& mark : marks) context.wait(0, mark);
    for (const auto& [factor, sums] : scales) {
      for (int r = 0; r < sums.rows; ++r) {
        kernels::join_low_rank(*factor.data, sums.columns / kLowRankChains, f32_row(sums, r));
      }
    }
  });
}

// By outputs: those of a panel are a block's multiple from its begin, since panels are.
void CpuOps::add_low_rank_out(Stream& stream, std::vector<LowRankPart> parts, Activations out) {
  for (const LowRankPart& part : parts) check_low_rank_out(part, out);
  Marks marks_of_parts(parts);
  cpu(stream).launch([=, this, marks = std::move(marks_of_parts), parts = std::move(parts)](CpuContext& context) {
    cut_outputs(parts, low_rank_tasks_);
    context.parallel_for(static_cast<int>(low_rank_tasks_.size()), [&](int thread, int i) {
      const auto [part, first, count] = low_rank_tasks_[static_cast<std::size_t>(i)];
      marks.wait(context, thread, part);
      add_out(parts[part], first, count, out);
      if (thread == 0) context.poll();
    });
  });
}

}  // namespace computron
