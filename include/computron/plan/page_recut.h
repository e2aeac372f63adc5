// Layouts and frames as another page size would have them: the same bytes in the order of use, cut anew.
#pragma once

#include <cstddef>

#include "computron/model/shard_layout.h"

namespace computron {

// Pages of `page_bytes` over the bytes of `layout`, one behind the other; every use of an old page is one of each new
// page that holds a part of it. What a real layout would leave empty at the ends of pages is not known here: a page is
// full, but for the last, and none lies in a slot. Pages smaller than a row block of the model cannot be told from
// others.
ShardLayout recut(const ShardLayout& layout, std::size_t page_bytes);

}  // namespace computron
