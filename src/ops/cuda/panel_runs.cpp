#include "src/ops/cuda/panel_runs.h"

#include "computron/base/error.h"

namespace computron {

kernels::cuda::RowRuns kernel_runs(std::span<const PanelRun> runs) {
  kernels::cuda::RowRuns out{};
  ensure(runs.size() <= static_cast<std::size_t>(out.kMax), "more runs of panels than a kernel takes");
  for (const PanelRun& run : runs) {
    out.runs[out.count++] = {run.data, run.row_begin, run.rows, out.tiles};
    out.tiles += ceil_div(run.rows, kernels::cuda::kTileRows);
  }
  return out;
}

}  // namespace computron
