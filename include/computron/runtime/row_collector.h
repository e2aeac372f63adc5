// Brings the vocabulary slices of the logits, which the tensor-parallel ranks of the last stage have, together at t =
// 0, which samples.
//
//   rank t   offers what t = 0 needs of its slices: a summary of the logits a row and slice, and for rows that draw a
//            token the candidates
//   t = 0    samples every row that the offers decide; asks for whole slices of the others (once a step)
//   rank t   answers
#pragma once

#include <vector>

#include "computron/base/idle.h"
#include "computron/base/trace.h"
#include "computron/comm/mesh.h"
#include "computron/model/pass.h"
#include "computron/model/sampler.h"

namespace computron {

class RowCollector {
 public:
  // Borrows all; `trace` may be null. `max_slice`: tokens of the longest slice of a vocabulary.
  RowCollector(const Mesh& mesh, Progress& progress, Trace* trace, std::size_t max_slice)
      : mesh_(mesh), progress_(progress), trace_(trace), max_slice_(max_slice) {}

  // Collective over the stage's ranks. `logits` and `samples`: [row, slice], this rank's `slices` vocabulary slices of
  // the batch's output rows; `samples` is empty where no row samples. Returns the sampled rows on t = 0, nothing
  // elsewhere. Waits by `progress`.
  std::vector<SampledRow> collect(const Batch& batch, int slices, std::vector<TopLogits> logits,
                                  std::vector<SliceSample> samples);

 private:
  // What one rank offers: [row, slice].
  struct Offer {
    std::vector<TopLogits> logits;
    std::vector<SliceSample> samples;
  };
  // The offers of all ranks.
  struct Table {
    std::vector<Offer> ranks;
    int slices = 1;
    // All slices of row i, in the order of tokens.
    std::vector<const TopLogits*> logits_of(std::size_t i) const;
    std::vector<const SliceSample*> samples_of(std::size_t i) const;
  };
  static std::vector<std::byte> encode(const Batch& batch, int slices, const Offer& offer);
  static Offer decode(const Batch& batch, int slices, std::span<const std::byte> bytes);
  static std::size_t max_bytes(const Batch& batch, int slices);

  std::vector<SampledRow> sample(const Batch& batch, int slices, Offer own);
  void answer(int slices, const std::vector<SliceSample>& samples);
  std::vector<std::vector<Candidate>> whole_rows(const std::vector<std::uint32_t>& wanted, const Table& table);

  void send(std::span<const std::byte> bytes, int to);
  // The next message from `from`, of at most `max_bytes` bytes.
  std::vector<std::byte> receive(int from, std::size_t max_bytes);

  const Mesh& mesh_;
  Progress& progress_;
  Trace* trace_;
  std::size_t max_slice_;
};

}  // namespace computron
