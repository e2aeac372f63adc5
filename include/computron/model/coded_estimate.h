// What the pages of a model would take coded, estimated from a sample of its checkpoint's bytes: nothing is loaded.
//
// Of each tensor some rows from its middle are packed as they would lie in a page, and coded. The whole of it is taken
// to gain as much.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/model/shard_layout.h"

namespace computron {

class CodedEstimate {
 public:
  static constexpr std::size_t kQuickSample = std::size_t{64} << 10;  // of a tensor, where the ranks of a job wait

  // Reads and verifies up to `sample_bytes` of each tensor, but at least a row block of a weight. `types` are
  // those that pages hold weights in, `format` says how; borrowed for as long as the estimate lives. CheckpointError,
  // Error{kIo}.
  CodedEstimate(const CheckpointIndex& index, const WeightFormat& format, const WeightTypes& types,
                std::size_t sample_bytes = std::size_t{1} << 20);

  // Of all the model's tensors, in the types that pages hold them in.
  std::size_t total_bytes() const { return total_bytes_; }
  std::size_t total_coded_bytes() const;
  // ShardLayout::link_bytes for a shard of the model: of a page that would gain nothing, what it uses.
  std::vector<std::size_t> link_bytes(const ShardLayout& layout) const;

 private:
  void add(const std::string& name, std::size_t bytes, double share);
  double share_of(const ShardTensor& tensor) const;

  const WeightFormat& format_;
  std::map<std::string, double> shares_;  // by stored tensor: coded ÷ raw
  std::size_t total_bytes_ = 0;
  double total_coded_bytes_ = 0;
};

}  // namespace computron
