// What models have in common, in their profiles: pages that are equal, and passes that they may share.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/model/shard_layout.h"
#include "computron/placement/profile.h"

namespace computron {

using ShapeLayouts = std::map<GroupShape, std::vector<ShardLayout>>;  // [stage]

// Of a model whose layouts are those of another one that differs in its weights only: with what its own pages hold.
ShapeLayouts with_contents(ShapeLayouts layouts, const CheckpointIndex& index);

// Adds to `models` the parts that they share, shape by shape, and their families. `layouts`: [model] with contents, of
// the shapes of its profile. Pages of different sizes are never equal, nor are those that lie in adapter slots.
void add_shared_parts(std::span<const ShapeLayouts> layouts, std::vector<ModelProfile>& models);

// What to say where models that have a matrix in common have pages of different sizes on one shape, since each was in a
// job of its own, which chose them: a job of all has one. Empty: there are none. `indices`: [model].
std::string page_sizes_text(std::span<const ShapeLayouts> layouts, const std::vector<ModelProfile>& models,
                            std::span<const CheckpointIndex> indices);

}  // namespace computron
