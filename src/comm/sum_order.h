// The one order in which parts of an all-reduce are added, whatever way they travelled: for a power of two the tree
// ((0 + 1) + (2 + 3)) + ..., otherwise ((0 + 1) + 2) + ... by rank.
#pragma once

#include <cstddef>
#include <span>

namespace computron {

// out[i] = lower[i] + upper[i]; `out` may be either of the two.
void add(float* out, const float* lower, const float* upper, std::size_t count);

// out[begin, end) = the sum of parts[r][begin, end) over all r, parts by rank. At least two parts; destroys their
// content. `out` may be one of them.
void sum_in_order(std::span<float* const> parts, float* out, std::size_t begin, std::size_t end);

}  // namespace computron
