// What programs ask of the CPU's kernels beside the operations: which library and which instructions multiply here, and
// how fast memory is read.
#pragma once

#include <cstddef>
#include <string>

namespace computron {

// "oneDNN 2.6.3": the library of some matrix products.
std::string onednn_library();

// Bits of the widest vectors that the kernels use on this processor: 256 (AVX2) or 512 (AVX-512).
int vector_bits();

// Loads every byte of [data, data + bytes) once, in order, and does nothing with it: the yardstick of everything that
// memory bounds. `data` is aligned to 32, `bytes` a multiple of 256.
void read_memory(const std::byte* data, std::size_t bytes);

}  // namespace computron
