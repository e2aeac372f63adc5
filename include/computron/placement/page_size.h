// How to cut weights into what is copied at a time, so that a pass of an absent model is over as early as can be: the
// cost model of PipeSwitch (Bai et al., "PipeSwitch: Fast Pipelined Context Switching for Deep Learning Applications",
// OSDI 2020), its grouping of layers, and the size of equal pages.
//
// Copies follow each other, and a pass trails them: with a copy's bytes it computes once they are there and it is done
// with those before. Small copies overlap better, but each costs something by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace computron {

struct CopyCosts {
  double copy_s = 0;  // a copy takes copy_s + bytes ÷ bytes_per_s
  double bytes_per_s = 0;
  double event_s = 0;  // that a pass takes more for each copy that it waits for
};

// Of weights in the order in which a pass computes with them.
struct TransferUnit {
  double bytes = 0;
  double compute_s = 0;
};

// Consecutive units that are copied together: group g ends before unit ends[g], and begins where the one before ends.
struct Grouping {
  std::vector<std::size_t> ends;
  double pass_s = 0;  // from the first copy's begin to the end of the pass
};

// Of units in groups that end at `ends`, the last of which is their number.
double grouped_pass_s(std::span<const TransferUnit> units, std::span<const std::size_t> ends, const CopyCosts& costs);

// The grouping whose pass is shortest, exactly: since a copy's time is affine in its bytes, the arrival of what ends
// with a unit depends only on how many groups there were, so O(units³) steps look at all 2^(units - 1) groupings. Of
// none: no groups. Error{kUsage} where a cost is below 0, or the rate is not above 0.
Grouping best_grouping(std::span<const TransferUnit> units, const CopyCosts& costs);

// A shard in frames, and over the host link, which takes less where pages are coded: each of them as large a part of
// its bytes as all together.
struct ShardBytes {
  double bytes = 0;
  double link_bytes = 0;
};

// Of a shard in pages of one size, the last of which may be partly used. What a page computes with it has in its frame.
double paged_pass_s(const ShardBytes& shard, double page_bytes, double compute_s_per_byte, const CopyCosts& costs);

struct PageSizeChoice {
  std::int64_t page_bytes = 0;
  double pass_s = 0;  // of all shards, one after the other
};

// The power of two from `least` to `most` with which the passes of all shards take least time together; the smaller of
// two that are as good. Where there is none between them, the first above `least`. Error{kUsage} as best_grouping().
PageSizeChoice best_page_size(std::span<const ShardBytes> shards, double compute_s_per_byte, const CopyCosts& costs,
                              std::int64_t least, std::int64_t most);

}  // namespace computron
