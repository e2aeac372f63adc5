// Tokens to text one by one, as they come: a character only when all of it is there, and all text together the same as
// Tokenizer::decode of all tokens.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "computron/text/tokenizer.h"

namespace computron {

// What of the tokens before a text says how the text begins: some of the last. The rest need not be kept.
std::span<const TokenId> decoding_context(const Tokenizer& tokenizer, std::span<const TokenId> before);

class IncrementalDecoder {
 public:
  // Goes on behind `before`, or its decoding_context(), whose text is not part of what comes: a first token's space,
  // say, is dropped only where nothing stands before it. Borrows the tokenizer.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, std::span<const TokenId> before = {});
  ~IncrementalDecoder();
  IncrementalDecoder(IncrementalDecoder&&) noexcept;

  // Appends the text that `token` completes; often that is nothing, sometimes also that of tokens before it.
  void push(TokenId token, std::string& text);
  // No token follows: appends what was held back.
  void finish(std::string& text);
  // What finish() would append, if that is whole characters; empty otherwise. A run of byte tokens (<0x0A>) is held
  // back to its end, since one byte that does not fit makes none of it a text.
  std::string held_back() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace computron
