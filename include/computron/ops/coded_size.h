// What values would take in a coded page, found by coding them.
#pragma once

#include <cstddef>
#include <span>

#include "computron/base/types.h"

namespace computron {

// Bytes of a coded page that holds nothing but `values`, as they lie in a page: elements of `dtype`. At most 128 MiB.
std::size_t coded_bytes(std::span<const std::byte> values, DType dtype);

}  // namespace computron
