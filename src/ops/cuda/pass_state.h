// What a pass has named beforehand (PassArrays), as the operations of the CUDA device find it.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "computron/ops/ops.h"
#include "src/ops/cuda/attention_tables.h"
#include "src/ops/cuda/pass_block.h"
#include "src/ops/cuda/sample_lists.h"

namespace computron {

class PassState {
 public:
  // `shared_bytes`: of shared memory, that a block of kernels may have.
  PassState(Device& device, int shared_bytes) : block_(device), shared_bytes_(shared_bytes) {}

  // Ops::begin_pass(), upload_inputs(), end_pass().
  std::string begin(const PassArrays& arrays);
  void upload(CudaComputeStream& stream) const { block_.upload(stream); }
  void end();

  // Where the values of an input are on the device; null where the pass has not named them.
  template <class T>
  const T* input(std::span<const T> values) const {
    return block_.input(values);
  }
  // Null where the pass has not named them.
  const AttentionTables* attention(std::span<const SequenceRows> sequences, const KvCacheView& cache,
                                   bool causal) const;
  // Where kernels put what is to be `out`; null where the pass has not named it.
  TopLogits* top_logits(const TopLogits* out) const;

  // One call of Ops::sample().
  struct SampleCall {
    std::span<const RowSampling> rows;
    SliceSample* out;
    SampleLists lists;
    std::size_t slices = 0, candidates = 0, all = 0;  // their numbers as results of the block
  };
  // Null where the pass has not named it.
  const SampleCall* sampling(std::span<const RowSampling> rows) const;
  SampleResults results_on_device(const SampleCall& call) const;

 private:
  void forget();
  void add_sampling(const PassArrays& arrays);
  // Numbers of rows that launches are told, beside the places of the arrays, which tell only their classes.
  std::string launches() const;

  PassBlock block_;
  int shared_bytes_;
  PassArrays arrays_;
  AttentionTables attention_;
  std::size_t top_logits_ = 0;      // the number of arrays_.logits as a result
  std::deque<SampleCall> samples_;  // whose lists stay where they are
};

}  // namespace computron
