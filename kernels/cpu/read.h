// A plain read of memory: the yardstick of everything that memory bounds.
#pragma once

#include <cstddef>

namespace computron::kernels {

// Loads every byte of [p, p + bytes) once, in order. `p` is aligned to 32, `bytes` a multiple of 256.
void read(const std::byte* p, std::size_t bytes);

}  // namespace computron::kernels
