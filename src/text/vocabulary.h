// The tokens of a model: their texts as the file spells them, and their numbers.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "computron/base/types.h"
#include "src/text/json_reader.h"

namespace computron {

inline constexpr TokenId kNoToken = -1;
inline constexpr TokenId kMaxTokenId = (1 << 22) - 1;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokensByText = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

class Vocabulary {
 public:
  // CheckpointError if another token has the text or the number, or the number is out of bounds.
  void add(std::string text, TokenId id);

  // kNoToken if there is none.
  TokenId id_of(std::string_view text) const;
  // Null if there is none.
  const std::string* text_of(TokenId id) const;
  const TokensByText& all() const { return ids_; }
  // One more than the largest number.
  TokenId end() const { return static_cast<TokenId>(texts_.size()); }

 private:
  TokensByText ids_;
  std::vector<const std::string*> texts_;  // keys of ids_
};

// A JSON object of numbers by text.
Vocabulary read_vocabulary(const JsonAt& json);
// A JSON list of texts with their scores, numbered from 0, and those scores, all of them finite.
Vocabulary read_scored_vocabulary(const JsonAt& json);
std::vector<double> read_scores(const JsonAt& json);
// A line a token (vocab.txt), numbered from 0; a later line of the same text counts.
Vocabulary read_vocabulary_lines(std::string_view lines, const std::string& file);

// GPT-2's spelling of bytes as characters: every byte is one that can be seen.
void append_spelled_byte(std::string& text, unsigned char byte);
// The bytes that a text spells; false if one of its characters is no byte's.
bool spelled_bytes(std::string_view text, std::string& bytes);

// "<0x0A>": a token that is one byte.
std::string byte_token(unsigned char byte);
// The byte, or -1 if the text is no such token.
int byte_of_token(std::string_view text);

}  // namespace computron
