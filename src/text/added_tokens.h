// Tokens that stand beside a model's vocabulary and are found in a text before anything else is done with it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "src/text/regex.h"

namespace computron {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  std::string text = {};     // as it is found and decoded: the content, normalized if it is to be
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // found in the normalized text, as its normalized content
  bool special = false;      // left out of decoded text
};

inline constexpr std::size_t kMaxAddedTokenBytes = 512;

// The leftmost, of those the longest, of several texts: a trie of bytes.
class TextFinder {
 public:
  TextFinder() { nodes_.emplace_back(); }
  // Of two that are the same the first one counts. Empty ones are never found.
  void add(std::string_view text, std::size_t index);

  struct Found {
    TextRange range;
    std::size_t index = 0;
  };
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Node {
    std::vector<std::pair<char, std::size_t>> next;  // by byte, in order
    std::size_t index = kNone;
  };
  const std::size_t* child(const Node& node, char byte) const;

  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

// A part of a text: a token, or text to be encoded.
struct TextPart {
  TextRange range;
  bool is_token = false;
  TokenId token = 0;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Special ones go before others where both are the same text.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // The parts of a text, in order, before it is normalized; then those of its normalized parts.
  std::vector<TextPart> split_original(std::string_view text) const { return split(text, original_); }
  std::vector<TextPart> split_normalized(std::string_view text) const { return split(text, normalized_); }

 private:
  std::vector<TextPart> split(std::string_view text, const TextFinder& finder) const;

  std::vector<AddedToken> tokens_;  // special ones first
  TextFinder original_, normalized_;
};

}  // namespace computron
