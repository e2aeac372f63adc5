// The text of a sequence's tokens as they are generated, and where a stop string ends it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/text/incremental_decoder.h"

namespace computron {

// Texts that end a generated text.
class StopStrings {
 public:
  StopStrings() = default;
  // None is empty.
  explicit StopStrings(std::vector<std::string> texts);

  bool empty() const { return texts_.empty(); }
  // Where the first of them begins in `text`, at or behind `from`; npos if none is there.
  std::size_t find(std::string_view text, std::size_t from) const;
  std::size_t longest() const { return longest_; }

 private:
  std::vector<std::string> texts_;
  std::size_t longest_ = 0;
};

// Whoever pushes the same tokens gets the same text and the same end, in one process or another.
class GeneratedText {
 public:
  // `prompt`: the tokens that came before, or decoding_context() of them. A stop string is looked for in generated text
  // only, behind the text of the first `min_tokens` tokens. Borrows the tokenizer.
  GeneratedText(const Tokenizer& tokenizer, std::span<const TokenId> prompt, StopStrings stops,
                std::uint32_t min_tokens);

  // True when a stop string is complete: the text ends before it, and nothing more is added.
  bool push(TokenId token);
  // No token follows: adds what was held back of a character that is not whole, as U+FFFD.
  void finish();
  // Characters of the text so far, those that are held back but whole included: where the next token's begin.
  std::size_t characters() const { return characters_ + held_characters_; }

  const std::string& text() const { return text_; }
  bool stopped() const { return stopped_; }

 private:
  bool stop_behind(std::size_t old_size);
  bool stop_in_held_back();

  IncrementalDecoder decoder_;
  StopStrings stops_;
  std::uint32_t unchecked_tokens_;
  std::string text_;
  std::size_t look_from_ = 0;
  std::size_t characters_ = 0, held_characters_ = 0;
  bool stopped_ = false;
};

}  // namespace computron
