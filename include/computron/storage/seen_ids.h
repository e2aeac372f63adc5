// The custom_ids read so far: one that comes again is refused.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "computron/base/digest.h"

namespace computron {

// A set of strings as their 128-bit digests, in one flat table: an input may have many millions of lines, and a node
// for each would take twice the memory.
class SeenIds {
 public:
  // Room for `ids` of them, so that memory does not grow while they come; no more than kMostReserved at once.
  static constexpr std::size_t kMostReserved = std::size_t{1} << 22;  // 128 MiB
  void reserve(std::size_t ids);
  void insert(std::string_view id);
  bool contains(std::string_view id) const;

 private:
  // Where `id` is, or is to be.
  std::size_t slot_of(const Digest128& id) const;
  void rehash(std::size_t slots);

  std::vector<Digest128> slots_;  // a power of two of them, at most 3/4 taken; all zeroes: free
  std::size_t count_ = 0;
};

}  // namespace computron
