// What pages hold, told from a checkpoint's metadata before a byte of them is read.
#pragma once

#include <optional>
#include <vector>

#include "computron/base/digest.h"
#include "computron/checkpoint/index.h"
#include "computron/model/shard_layout.h"

namespace computron {

// By page: a digest of everything that its bytes follow from on all of the `tp` ranks of the layout's stage: where in
// the page which rows lie and of which type, and the digests of the stored bytes that they are made from, which a load
// verifies. So pages with equal digests hold equal bytes on every rank, whatever their models and files; a page that
// differs on one rank alone differs. Of stored bytes whole chunks of kDigestChunkBytes count, so pages may be equal and
// not be found to be. The layouts that are compared are of one job: one page size, weight format and number of ranks.
std::vector<Digest128> page_contents(const CheckpointIndex& index, const ShardLayout& layout, int tp);

// What ShardLayout::family is to be, of a layout that tells its contents: a digest of its pages but for its adapter's
// and of its configuration, adapters and end-of-sequence tokens aside. None where a pass takes no riders: of models
// with experts, of those that pool their rows, and of adapters that change what comes behind the last layer, whose rows
// are others than the batch's.
std::optional<Digest128> family_digest(const ShardLayout& layout);

}  // namespace computron
