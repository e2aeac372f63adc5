// What a model's next token may be where its answer is guided: a grammar over a vocabulary's tokens.
//
// A Guide is shared by all sequences that are guided alike, and keeps what it has found out for them. Both classes are
// of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "computron/base/types.h"
#include "computron/guided/grammar.h"
#include "computron/guided/matcher.h"
#include "computron/guided/token_trie.h"

namespace computron {

class Guide {
 public:
  Guide(std::shared_ptr<const TokenTrie> tokens, std::shared_ptr<const Grammar> grammar);

  const TokenTrie& tokens() const { return *tokens_; }

 private:
  friend class GuidedText;
  static constexpr std::size_t kMaxMatcherBytes = std::size_t{16} << 20;
  static constexpr std::size_t kMaxMaskBytes = std::size_t{16} << 20;

  // Empty where it takes too much to tell. Borrowed until the next call.
  const TokenMask& mask(Matcher::State state);
  // Begins with a new matcher where the states of this one have become too many; texts take theirs along.
  void trim();

  std::shared_ptr<const TokenTrie> tokens_;
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<Matcher> matcher_;
  std::unordered_map<Matcher::State, TokenMask> masks_;  // by states of matcher_
};

// How far one sequence's text is. It follows from the guide and the tokens alone, so a sequence that begins again is
// where it was once it has been told its tokens.
class GuidedText {
 public:
  explicit GuidedText(std::shared_ptr<Guide> guide);

  void append(TokenId token);
  // Sets the bits of the tokens that may come next: those with which the text can still become what the guide asks for,
  // and where it is that already, the `ends`, which are never part of a text. No bit: there is no such token.
  void allow(std::span<const TokenId> ends, TokenMask& mask);

 private:
  std::shared_ptr<Guide> guide_;
  std::shared_ptr<Matcher> matcher_;  // perhaps no longer the guide's
  Matcher::State state_;
};

}  // namespace computron
