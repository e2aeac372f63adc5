// Rows of a matrix that lie in several places, as a kernel is told of them.
#pragma once

#include <cstddef>

#include "computron/base/host_device.h"

namespace computron::kernels::cuda {

inline constexpr int kTileRows = 16;  // of a weight, that one block multiplies

// Rows [row_begin, row_begin + rows), one behind the other at `data`. A GEMM weight has zero rows behind them up to a
// multiple of kTileRows. Tiles are counted through all runs.
struct RowRun {
  const std::byte* data;
  int row_begin;
  int rows;
  int first_tile;
};

// Passed to kernels by value, which limits their number. In row order, without gaps.
struct RowRuns {
  static constexpr int kMax = 64;
  RowRun runs[kMax];
  int count;
  int tiles;

  // Null: none holds the row.
  COMPUTRON_HOST_DEVICE const RowRun* with_row(int row) const {
    int low = 0, high = count;  // the run lies in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (runs[middle].row_begin <= row ? low : high) = middle;
    }
    const RowRun& run = runs[low];
    return count > 0 && row >= run.row_begin && row < run.row_begin + run.rows ? &run : nullptr;
  }

  // `tile` < tiles.
  COMPUTRON_HOST_DEVICE const RowRun& with_tile(int tile) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (runs[middle].first_tile <= tile ? low : high) = middle;
    }
    return runs[low];
  }
};

}  // namespace computron::kernels::cuda
