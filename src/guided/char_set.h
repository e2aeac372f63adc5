// Sets of Unicode characters, and how a grammar reads one of a set.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "computron/guided/grammar.h"

namespace computron {

class CharSet {
 public:
  using Range = std::pair<std::uint32_t, std::uint32_t>;  // first, last

  CharSet() = default;
  // The ASCII characters of `text`.
  explicit CharSet(std::string_view text);
  static CharSet of(std::uint32_t first, std::uint32_t last);
  // All that UTF-8 can write: no surrogates.
  static CharSet all();

  void add(std::uint32_t first, std::uint32_t last);
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet intersection(const CharSet& other) const;
  CharSet without(const CharSet& other) const { return intersection(other.complement()); }
  bool contains(std::uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }  // ascending, apart

 private:
  std::vector<Range> ranges_;
};

// Reads one character of the set from `from` to `to`, in UTF-8.
void add_characters(GrammarBuilder& grammar, GrammarNodeId from, const CharSet& set, GrammarNodeId to);
// The same within a JSON string: quotes, backslashes and control characters as escapes of two characters; control
// characters that have none are left out.
void add_json_characters(GrammarBuilder& grammar, GrammarNodeId from, const CharSet& set, GrammarNodeId to);

}  // namespace computron
