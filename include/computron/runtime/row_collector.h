// How the tensor-parallel ranks of the last stage bring their slices of the logits together at t = 0, which samples.
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

  // What every rank of the stage has of the batch's R rows, `slices` of each side by side, → R sampled rows on t = 0,
  // none elsewhere. All ranks of the stage must call it. Top-k logits and candidates go first; of rows whose
  // candidates do not tell which token is sampled (sample_from_slices(), model/sampler.h), t = 0 then asks for all.
  std::vector<SampledRow> collect(const Batch& batch, int slices, std::vector<TopLogits> logits,
                                  std::vector<SliceSample> samples);

 private:
  // Of one rank: slices of all rows.
  struct Offer {
    std::vector<TopLogits> logits;
    std::vector<SliceSample> samples;
  };
  // Offers of all ranks.
  struct Table {
    std::vector<Offer> ranks;
    int slices = 1;
    // Everything that is said of row i, in the order of tokens.
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
  // The message of `from`, of at most `max_bytes`.
  std::vector<std::byte> receive(int from, std::size_t max_bytes);

  const Mesh& mesh_;
  Progress& progress_;
  Trace* trace_;
  std::size_t max_slice_;
};

}  // namespace computron
