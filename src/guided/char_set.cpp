#include "src/guided/char_set.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace computron {
namespace {

constexpr std::uint32_t kLast = 0x10FFFF, kSurrogates = 0xD800, kBehindSurrogates = 0xE000;
constexpr std::array<std::uint32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLast};  // bytes of UTF-8, less one
constexpr std::uint32_t kTail = 6;                                                    // bits of a byte behind the first

int tail_bytes(std::uint32_t c) {
  return static_cast<int>(std::ranges::lower_bound(kLastOfLength, c) - kLastOfLength.begin());
}

// Byte `i` of the character's `tail + 1`.
std::uint8_t utf8_byte(std::uint32_t c, int tail, int i) {
  constexpr std::array<std::uint32_t, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
  const std::uint32_t bits = c >> (kTail * static_cast<std::uint32_t>(tail - i));
  return static_cast<std::uint8_t>(i == 0 ? kLead[static_cast<std::size_t>(tail)] | bits : 0x80 | (bits & 0x3F));
}

// Ranges of characters as ranges of bytes, one behind the other: a range is cut until each of its bytes runs over a
// range that does not depend on the bytes before.
class Utf8Ranges {
 public:
  Utf8Ranges(GrammarBuilder& grammar, GrammarNodeId from, GrammarNodeId to)
      : grammar_(grammar), from_(from), tails_{to, kNone, kNone, kNone} {}

  void add(std::uint32_t first, std::uint32_t last) {
    const int tail = tail_bytes(first);
    const std::uint32_t longest = kLastOfLength[static_cast<std::size_t>(tail)];
    if (last > longest) return split(first, longest, last);
    for (int i = 1; i <= tail; ++i) {
      const std::uint32_t mask = (1u << (kTail * static_cast<std::uint32_t>(i))) - 1;
      if ((first & ~mask) == (last & ~mask)) continue;
      if ((first & mask) != 0) return split(first, first | mask, last);
      if ((last & mask) != mask) return split(first, (last & ~mask) - 1, last);
    }
    add_sequence(first, last, tail);
  }

 private:
  static constexpr GrammarNodeId kNone = 0xffffffff;

  void split(std::uint32_t first, std::uint32_t middle, std::uint32_t last) {
    add(first, middle);
    add(middle + 1, last);
  }

  void add_sequence(std::uint32_t first, std::uint32_t last, int tail) {
    GrammarNodeId at = from_;
    for (int i = 0; i <= tail; ++i) {
      const std::uint8_t low = utf8_byte(first, tail, i), high = utf8_byte(last, tail, i);
      const bool any = is_any_tail(first, last, tail - i);
      if (!any) {
        at = through(at, low);  // one byte: else what follows would be any
        continue;
      }
      grammar_.add_bytes(at, low, high, any_tail(tail - i));
      return;
    }
  }

  // Whether the last `bytes` bytes may be any.
  static bool is_any_tail(std::uint32_t first, std::uint32_t last, int bytes) {
    const std::uint32_t mask = (1u << (kTail * static_cast<std::uint32_t>(bytes))) - 1;
    return (first & mask) == 0 && (last & mask) == mask;
  }

  // Sequences that begin alike share their beginnings.
  GrammarNodeId through(GrammarNodeId from, std::uint8_t byte) {
    const auto [place, is_new] = shared_.try_emplace({from, byte}, 0);
    if (is_new) {
      place->second = grammar_.add_node();
      grammar_.add_bytes(from, byte, byte, place->second);
    }
    return place->second;
  }

  // From here `bytes` bytes of any value lead to the end.
  GrammarNodeId any_tail(int bytes) {
    if (tails_[static_cast<std::size_t>(bytes)] == kNone) {
      const GrammarNodeId behind = any_tail(bytes - 1);
      const GrammarNodeId node = grammar_.add_node();
      grammar_.add_bytes(node, 0x80, 0xBF, behind);
      tails_[static_cast<std::size_t>(bytes)] = node;
    }
    return tails_[static_cast<std::size_t>(bytes)];
  }

  GrammarBuilder& grammar_;
  GrammarNodeId from_;
  std::array<GrammarNodeId, 4> tails_;  // [bytes]
  std::map<std::pair<GrammarNodeId, std::uint8_t>, GrammarNodeId> shared_;
};

}  // namespace

CharSet::CharSet(std::string_view text) {
  for (const char c : text) add(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
}

CharSet CharSet::of(std::uint32_t first, std::uint32_t last) {
  CharSet set;
  set.add(first, last);
  return set;
}

CharSet CharSet::all() {
  CharSet set;
  set.ranges_ = {{0, kSurrogates - 1}, {kBehindSurrogates, kLast}};
  return set;
}

// What overlaps the range, or touches it, becomes one with it.
void CharSet::add(std::uint32_t first, std::uint32_t last) {
  const auto begin = std::ranges::lower_bound(ranges_, first, {}, [](const Range& range) { return range.second + 1; });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= last + 1; ++end) {
    first = std::min(first, end->first);
    last = std::max(last, end->second);
  }
  if (begin == end) {
    ranges_.insert(begin, {first, last});
  } else {
    *begin = {first, last};
    ranges_.erase(begin + 1, end);
  }
}

void CharSet::add(const CharSet& other) {
  for (const auto& [first, last] : other.ranges_) add(first, last);
}

CharSet CharSet::complement() const {
  CharSet set;
  std::uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) set.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) set.ranges_.emplace_back(next, kLast);
  return set.intersection(all());
}

CharSet CharSet::intersection(const CharSet& other) const {
  CharSet set;
  for (const auto& [first, last] : ranges_) {
    for (const auto& [other_first, other_last] : other.ranges_) {
      const std::uint32_t low = std::max(first, other_first), high = std::min(last, other_last);
      if (low <= high) set.ranges_.emplace_back(low, high);
    }
  }
  return set;
}

bool CharSet::contains(std::uint32_t c) const {
  return std::ranges::any_of(ranges_, [c](const Range& range) { return range.first <= c && c <= range.second; });
}

void add_characters(GrammarBuilder& grammar, GrammarNodeId from, const CharSet& set, GrammarNodeId to) {
  Utf8Ranges ranges(grammar, from, to);
  const CharSet valid = set.intersection(CharSet::all());
  for (const auto& [first, last] : valid.ranges()) ranges.add(first, last);
}

void add_json_characters(GrammarBuilder& grammar, GrammarNodeId from, const CharSet& set, GrammarNodeId to) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  CharSet plain = set.without(CharSet("\"\\")).without(CharSet::of(0, 0x1F));
  add_characters(grammar, from, plain, to);
  CharSet letters;
  for (std::size_t i = 0; i < kEscaped.size(); ++i) {
    if (set.contains(static_cast<unsigned char>(kEscaped[i]))) letters.add(CharSet(kLetters.substr(i, 1)));
  }
  if (!letters.empty()) add_characters(grammar, grammar.literal(from, "\\"), letters, to);
}

}  // namespace computron
