// Panels that lie one behind the other in one page are one matrix to multiply with: fewer, larger calls.
//
// Which panels these are is a matter of the page alone, never of the frames that its neighbours are in. So a weight is
// always multiplied in the same pieces, wherever its pages lie and whenever they came.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "computron/ops/ops.h"
#include "kernels/cuda/runs.h"

namespace computron {

// Rows [row_begin, row_begin + rows), one behind the other at `data` once `ready` is reached.
struct PanelRun {
  const std::byte* data = nullptr;
  const Event* ready = nullptr;
  int row_begin = 0;
  int rows = 0;
};

// `panels` follow each other in row order; a row has `row_bytes`. Pages are told apart by their events; panels without
// one are taken to be of one page if they touch.
template <class Panel>
std::vector<PanelRun> merge_panels(std::span<const Panel> panels, std::size_t row_bytes) {
  std::vector<PanelRun> runs;
  for (const Panel& panel : panels) {
    const bool touches = !runs.empty() && runs.back().ready == panel.ready &&
                         runs.back().data + runs.back().rows * row_bytes == panel.data;
    if (touches) {
      runs.back().rows += panel.rows;
    } else {
      runs.push_back({panel.data, panel.ready, panel.row_begin, panel.rows});
    }
  }
  return runs;
}

// As kernels are told; at most RowRuns::kMax.
kernels::cuda::RowRuns kernel_runs(std::span<const PanelRun> runs);

}  // namespace computron
