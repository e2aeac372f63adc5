// Values and lists of values from every rank, as Communicator::all_gather() does it with bytes. All ranks run the same
// program on the same kind of machine, so that values travel as they lie in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "computron/comm/mpi.h"

namespace computron {

// Collective. [rank] Everybody's `mine`, of any lengths.
template <class Value>
std::vector<std::vector<Value>> gather_lists(const Communicator& ranks, const std::vector<Value>& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<std::vector<Value>> lists;
  for (const std::vector<std::byte>& bytes : ranks.all_gather(std::as_bytes(std::span(mine)))) {
    std::vector<Value>& list = lists.emplace_back(bytes.size() / sizeof(Value));
    if (!bytes.empty()) std::memcpy(list.data(), bytes.data(), bytes.size());
  }
  return lists;
}

// Collective. [rank] Everybody's `mine`.
template <class Value>
std::vector<Value> gather(const Communicator& ranks, const Value& mine) {
  std::vector<Value> values;
  for (const std::vector<Value>& list : gather_lists(ranks, std::vector<Value>{mine})) values.push_back(list.front());
  return values;
}

}  // namespace computron
