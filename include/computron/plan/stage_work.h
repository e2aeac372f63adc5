// What a pass costs time for, from the layout of a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "computron/model/shard_layout.h"
#include "computron/placement/pass_formula.h"

namespace computron {

// Of a stage that its layout describes. Encoders have no cache.
StageWork stage_work(const ShardLayout& layout);

// What a profile says of a shape without measuring it: stage_bytes, link_bytes, frame_bytes, operation_bytes and
// cache_token_bytes. `stages` by stage.
ShapeProfile sizes_of(const std::vector<const ShardLayout*>& stages);

}  // namespace computron
