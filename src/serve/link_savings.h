// How much less pages take over host links than in frames, put together from what the ranks say of theirs. Models, and
// groups of ranks, may have a layout in common: it gets the least that all of its ranks save.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "computron/model/shard_layout.h"

namespace computron {

class LinkSavings {
 public:
  // What a rank saves, from the layout's first page on, and perhaps more pages behind its last; empty: nothing. Borrows
  // the layout.
  void note(ShardLayout* layout, std::span<const std::uint32_t> savings);
  // Writes the layouts' link_bytes, of those that any page saves anything of.
  void set_link_bytes() const;

 private:
  std::map<ShardLayout*, std::vector<std::uint32_t>> least_;  // [page]
};

}  // namespace computron
