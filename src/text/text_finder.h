// Looks for many texts at once: a trie of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "src/text/regex.h"

namespace computron {

class TextFinder {
 public:
  TextFinder() { nodes_.emplace_back(); }
  // Of two that are the same the first one counts. Empty ones are never found.
  void add(std::string_view text, std::size_t index);

  struct Found {
    TextRange range;
    std::size_t index = 0;
  };
  // The leftmost at or behind `from`, of those the longest.
  std::optional<Found> find(std::string_view text, std::size_t from) const;
  // The longest that begins at `begin`.
  std::optional<Found> longest_at(std::string_view text, std::size_t begin) const;
  // Calls take(end, index) for each that begins at `begin`, the shortest first.
  template <class Take>
  void each_at(std::string_view text, std::size_t begin, Take&& take) const {
    const Node* node = &nodes_[0];
    for (std::size_t at = begin; at < text.size();) {
      const std::size_t* next = child(*node, text[at++]);
      if (next == nullptr) return;
      node = &nodes_[*next];
      if (node->index != kNone) take(at, node->index);
    }
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Node {
    std::vector<std::pair<char, std::size_t>> next;  // by byte, in order
    std::size_t index = kNone;
  };
  static const std::size_t* child(const Node& node, char byte);

  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

}  // namespace computron
