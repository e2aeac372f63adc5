// Transposes matrices of elements of 1, 2 or 4 bytes. Private to src/checkpoint.
#pragma once

#include <cstddef>

namespace computron {

// out[c * out_stride + r] = in[r * in_stride + c] for r < rows, c < columns; strides in elements of `element_bytes`
// (1, 2 or 4). Meant for blocks that fit into a core's cache.
void transpose(const std::byte* in, std::size_t in_stride, std::size_t rows, std::size_t columns, std::byte* out,
               std::size_t out_stride, std::size_t element_bytes);

}  // namespace computron
