// Tokens that stand beside a model's vocabulary and are found in a text before anything else is done with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "src/text/text_finder.h"

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

inline constexpr std::size_t kMaxAddedTokenBytes = 512;  // normalized

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
