// Copies past the caches: what a fetch writes is larger than any cache and read much later.
#pragma once

#include <cstddef>

namespace computron {

// memcpy with non-temporal stores, any size and alignment. On return the bytes are visible to every thread that
// synchronizes with this one in the ordinary way (the stores are fenced).
void streaming_copy(std::byte* destination, const std::byte* source, std::size_t bytes);

}  // namespace computron
