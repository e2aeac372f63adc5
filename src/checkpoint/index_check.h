// What must hold of an index whoever made it. Private to src/checkpoint.
#pragma once

#include "computron/checkpoint/index.h"
#include "src/checkpoint/subject.h"

namespace computron {

// Names, counts and sizes within the format's limits, as many bytes as the shape says, as many digests as the bytes
// need, everything inside a file of index.file_bytes and disjoint. Throws `file` naming the thing otherwise.
void check_index(const CheckpointIndex& index, const Subject& file);

}  // namespace computron
