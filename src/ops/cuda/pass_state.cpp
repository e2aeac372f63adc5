#include "src/ops/cuda/pass_state.h"

#include <algorithm>

namespace computron {
namespace {

// Of what rows that truncate may bring back. Beyond it their places are lent by Staging, call by call.
constexpr std::size_t kMostSamplingBytes = std::size_t{64} << 20;

std::size_t sampling_bytes(const PassArrays& arrays) {
  const std::size_t a_row =
      sizeof(Candidate) * (static_cast<std::size_t>(arrays.logit_columns) +
                           static_cast<std::size_t>(arrays.logit_slices) * SliceSample::kCandidates);
  std::size_t bytes = 0;
  for (const std::span<const RowSampling> rows : arrays.sampling) {
    bytes += a_row * static_cast<std::size_t>(std::ranges::count_if(
                         rows, [](const RowSampling& row) { return row.samples && row.truncates(); }));
  }
  return bytes;
}

}  // namespace

std::string PassState::begin(const PassArrays& arrays) {
  forget();
  arrays_ = arrays;
  for (const auto& input : arrays.inputs) block_.add_input(input);
  if (!arrays.sequences.empty()) {
    attention_ = AttentionTables(arrays.sequences, *arrays.cache, arrays.rows, arrays.causal, shared_bytes_);
    attention_.put([this]<class T>(std::span<const T> values) -> const T* {
      block_.add_input(std::as_bytes(values));
      return nullptr;
    });
  }
  top_logits_ = block_.add_result(arrays.logits.size_bytes());
  const bool sampling_fits = arrays.samples.empty() || sampling_bytes(arrays) <= kMostSamplingBytes;
  if (!arrays.samples.empty() && sampling_fits) add_sampling(arrays);
  block_.lay_out();
  if (!arrays.sequences.empty()) {
    attention_.put([this]<class T>(std::span<const T> values) { return block_.input(values); });
  }
  return sampling_fits ? launches() : std::string();
}

void PassState::add_sampling(const PassArrays& arrays) {
  SliceSample* out = arrays.samples.data();
  for (const std::span<const RowSampling> rows : arrays.sampling) {
    SampleCall& call = samples_.emplace_back(SampleCall{rows, out, SampleLists(rows)});
    out += rows.size() * static_cast<std::size_t>(arrays.logit_slices);
    block_.add_input(std::as_bytes(std::span(call.lists.rows)));
    block_.add_input(std::as_bytes(std::span(call.lists.row_ids)));
    block_.add_input(std::as_bytes(std::span(call.lists.used)));
    block_.add_input(std::as_bytes(std::span(call.lists.bias)));
    block_.add_input(std::as_bytes(std::span(call.lists.banned)));
    block_.add_input(std::as_bytes(std::span(call.lists.allowed)));
    const int slices = arrays.logit_slices;
    call.slices = block_.add_result(call.lists.result_slices(slices) * sizeof(*SampleResults::slices));
    call.candidates = block_.add_result(call.lists.result_candidates(slices) * sizeof(Candidate));
    call.all = block_.add_result(call.lists.result_columns(arrays.logit_columns) * sizeof(Candidate));
  }
}

std::string PassState::launches() const {
  std::string launches = block_.layout();
  const auto add = [&launches](std::size_t number) {
    launches.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  add(attention_.plan.row_ids.size());
  add(attention_.plan.tiles.size());
  add(static_cast<std::size_t>(attention_.plan.split_class()));
  add(attention_.plan.one_row_each ? 1 : 0);
  for (const SampleCall& call : samples_) add(call.lists.rows.size());
  return launches;
}

void PassState::end() {
  if (!arrays_.logits.empty()) {
    std::copy_n(block_.result<TopLogits>(top_logits_), arrays_.logits.size(), arrays_.logits.data());
  }
  for (const SampleCall& call : samples_) {
    const SampleResults results{block_.result<kernels::cuda::SampleResult>(call.slices),
                                block_.result<Candidate>(call.candidates), block_.result<Candidate>(call.all)};
    call.lists.give(results, arrays_.logit_slices, arrays_.logit_columns / arrays_.logit_slices, call.out);
  }
  forget();
}

void PassState::forget() {
  block_.begin();
  arrays_ = {};
  attention_ = {};
  samples_.clear();
}

const AttentionTables* PassState::attention(std::span<const SequenceRows> sequences, const KvCacheView& cache,
                                            bool causal) const {
  return attention_.are_of(sequences, cache, causal) ? &attention_ : nullptr;
}

TopLogits* PassState::top_logits(const TopLogits* out) const {
  const TopLogits* const begin = arrays_.logits.data();
  if (out < begin || out >= begin + arrays_.logits.size()) return nullptr;
  return block_.result_on_device<TopLogits>(top_logits_) + (out - begin);
}

const PassState::SampleCall* PassState::sampling(std::span<const RowSampling> rows) const {
  const auto found = std::ranges::find_if(samples_, [&](const SampleCall& call) {
    return call.rows.data() == rows.data() && call.rows.size() == rows.size();
  });
  return found == samples_.end() ? nullptr : &*found;
}

SampleResults PassState::results_on_device(const SampleCall& call) const {
  return {block_.result_on_device<kernels::cuda::SampleResult>(call.slices),
          block_.result_on_device<Candidate>(call.candidates), block_.result_on_device<Candidate>(call.all)};
}

}  // namespace computron
