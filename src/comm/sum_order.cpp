#include "src/comm/sum_order.h"

#include <algorithm>
#include <bit>

namespace computron {

namespace {

// Floats that are summed over all parts before going on: parts × 8 KiB stay in the first-level caches.
constexpr std::size_t kBlock = 2048;

void sum_tree(std::span<float* const> parts, float* out, std::size_t at, std::size_t count) {
  const std::size_t half = parts.size() / 2;
  for (std::size_t stride = 1; stride < half; stride *= 2) {
    for (std::size_t r = 0; r < parts.size(); r += 2 * stride) {
      add(parts[r] + at, parts[r] + at, parts[r + stride] + at, count);
    }
  }
  add(out + at, parts[0] + at, parts[half] + at, count);
}

void sum_chain(std::span<float* const> parts, float* out, std::size_t at, std::size_t count) {
  const std::size_t last = parts.size() - 1;
  for (std::size_t r = 1; r < last; ++r) add(parts[0] + at, parts[0] + at, parts[r] + at, count);
  add(out + at, parts[0] + at, parts[last] + at, count);
}

}  // namespace

void add(float* out, const float* lower, const float* upper, std::size_t count) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) out[i] = lower[i] + upper[i];
}

void sum_in_order(std::span<float* const> parts, float* out, std::size_t begin, std::size_t end) {
  const auto sum_block = std::has_single_bit(parts.size()) ? sum_tree : sum_chain;
  for (std::size_t at = begin; at < end; at += kBlock) sum_block(parts, out, at, std::min(kBlock, end - at));
}

}  // namespace computron
