// Panels that lie one behind the other are one matrix to multiply with: fewer, larger calls. While pages arrive, they
// are those of one page; where all are there, those of pages in neighbouring frames, too.
//
// Results do not depend on the pieces: every row of a weight is summed in the same order in any of them, by own kernels
// and by the library, which is given one algorithm for all pieces of a weight (library_gemm.h; seen on an H100 with 810
// products of 15 shapes, each cut in four ways).
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
// one are there.
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
