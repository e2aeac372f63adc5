// How rows of logits are to be sampled, as lists that kernels take, and what comes back of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "computron/kernels/sampling.h"
#include "kernels/cuda/sample.h"

namespace computron {

// Where kernels put what is sampled. At one address to the host and at another to the device.
struct SampleResults {
  kernels::cuda::SampleResult* slices = nullptr;  // [sampling rows × slices]
  Candidate* candidates = nullptr;                // [truncating rows × slices, SliceSample::kCandidates]
  Candidate* all = nullptr;                       // [truncating rows × slices, columns of a slice]
};

// Of the rows of one call of Ops::sample() that sample, one list behind the other.
struct SampleLists {
  SampleLists() = default;
  explicit SampleLists(std::span<const RowSampling> sampling);

  std::vector<kernels::cuda::SampleRow> rows;
  std::vector<std::int32_t> row_ids;
  std::vector<TokenUse> used;
  std::vector<kernels::cuda::TokenBias> bias;
  std::vector<TokenId> banned;
  std::vector<std::uint32_t> allowed;
  int truncating = 0;  // rows

  // Of the results' arrays, elements.
  std::size_t result_slices(int slices) const { return rows.size() * static_cast<std::size_t>(slices); }
  std::size_t result_candidates(int slices) const {
    return static_cast<std::size_t>(truncating) * static_cast<std::size_t>(slices) * SliceSample::kCandidates;
  }
  std::size_t result_columns(int columns) const {
    return static_cast<std::size_t>(truncating) * static_cast<std::size_t>(columns);
  }
  // Fills out[row × slices + slice] of the sampling rows from `results`, which the host can read; a slice has `width`
  // columns.
  void give(const SampleResults& results, int slices, int width, SliceSample* out) const;

 private:
  void add(int row, const RowSampling& sampling);
};

}  // namespace computron
