// A part of an input that one job of several serves (`--shard I/N`).
#pragma once

#include <cstdint>
#include <string>

#include "computron/base/types.h"

namespace computron {

// Part `index` of `count` of an input: the lines whose number leaves `index` when divided by `count`. So parts are of
// one size wherever the long requests stand, a line stays in its part when the input grows, and nobody must know how
// many there are. Duplicates are those of the whole input.
struct Shard {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
  bool has(RequestId line) const { return line % count == index; }
  std::string to_string() const;  // "0/4"
};
Shard parse_shard(const std::string& text);  // "I/N"; Error{kUsage} unless I < N

}  // namespace computron
