#include "src/ops/cuda/sample_lists.h"

namespace computron {

using kernels::cuda::SampleResult;
using kernels::cuda::SampleRow;

namespace {

// What came back of one slice of a row.
SliceSample sample_of(const SampleResult& result, const Candidate* candidates, const Candidate* all) {
  SliceSample out{.best = result.best, .score = result.score, .max = result.max, .sum_exp = result.sum_exp};
  out.candidates.assign(candidates, candidates + result.candidates);
  out.slice.assign(all, all + result.slice);
  return out;
}

}  // namespace

SampleLists::SampleLists(std::span<const RowSampling> sampling) {
  for (std::size_t row = 0; row < sampling.size(); ++row) {
    if (sampling[row].samples) add(static_cast<int>(row), sampling[row]);
  }
}

void SampleLists::add(int row, const RowSampling& s) {
  const auto append = [](auto& list, const auto& more) {
    const int begin = static_cast<int>(list.size());
    for (const auto& entry : more) list.push_back(entry);
    return begin;
  };
  SampleRow r{.row = row,
              .truncated = s.truncates() ? truncating++ : -1,
              .temperature = s.temperature,
              .top_k = s.top_k,
              .top_p = s.top_p,
              .min_p = s.min_p,
              .repetition_penalty = s.repetition_penalty,
              .frequency_penalty = s.frequency_penalty,
              .presence_penalty = s.presence_penalty,
              .whole = s.whole,
              .key = s.key,
              .position = s.position};
  r.used_begin = append(used, s.used);
  r.used_end = static_cast<int>(used.size());
  r.bias_begin = static_cast<int>(bias.size());
  for (const auto& [token, value] : s.bias) bias.push_back({token, value});
  r.bias_end = static_cast<int>(bias.size());
  r.banned_begin = append(banned, s.banned);
  r.banned_end = static_cast<int>(banned.size());
  r.allowed_begin = append(allowed, s.allowed);
  r.allowed_end = static_cast<int>(allowed.size());
  rows.push_back(r);
  row_ids.push_back(row);
}

void SampleLists::give(const SampleResults& results, int slices, int width, SliceSample* out) const {
  const auto count = static_cast<std::size_t>(slices);
  for (std::size_t i = 0; i < result_slices(slices); ++i) {
    const SampleRow& row = rows[i / count];
    const std::size_t place = row.truncated < 0 ? 0 : static_cast<std::size_t>(row.truncated) * count + i % count;
    out[static_cast<std::size_t>(row.row) * count + i % count] =
        sample_of(results.slices[i], results.candidates + place * SliceSample::kCandidates,
                  results.all + place * static_cast<std::size_t>(width));
  }
}

}  // namespace computron
