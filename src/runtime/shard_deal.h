// Which rank of a node loads which shard, so that each is loaded once and all ranks load about as many bytes.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "computron/base/digest.h"

namespace computron {

// What a rank computes with. Equal keys mean equal pages.
struct WantedShard {
  Digest128 key{};
  std::size_t bytes = 0;
};

struct DealtShard {
  int holder = 0;          // the rank that loads it
  bool shared = false;     // other ranks want it, too: then it lies
  std::size_t offset = 0;  // in the holder's segment, at a multiple of kSegmentAlignment
};

struct ShardDeal {
  std::map<Digest128, DealtShard> shards;  // by key
  std::vector<std::size_t> segment_bytes;  // [rank] what it holds for others, too; 0: nothing
};

inline constexpr std::size_t kSegmentAlignment = std::size_t{2} << 20;  // a huge page of x86

// `wanted`: by rank. What one rank alone wants, that rank loads; of the others the largest comes first, and goes to
// whoever of those that want it has least to load by then.
ShardDeal deal_shards(const std::vector<std::vector<WantedShard>>& wanted);

}  // namespace computron
