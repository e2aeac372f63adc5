// What a model's next token may be where its answer is guided: a grammar over a vocabulary's tokens.
//
// A Guide is shared by all sequences that are guided alike, and keeps what it has found out for them, within bounds. A
// GuidedText needs one only to ask, and any of the same text and vocabulary will do: a guide may be made again between
// two tokens. Both classes are of one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "computron/base/types.h"
#include "computron/guided/grammar.h"
#include "computron/guided/matcher.h"
#include "computron/guided/token_trie.h"

namespace computron {

// Of what a guide keeps to know it the next time. It changes how fast masks are found, and no mask.
struct GuideLimits {
  std::size_t matcher_bytes = std::size_t{12} << 20;  // Matcher::kept_bytes()
  std::size_t mask_bytes = std::size_t{16} << 20;
};

class Guide {
 public:
  // That bytes() may come to with the usual limits: the grammar, what it keeps, as much again of states in reserve, and
  // what one byte of a text adds before that is looked at.
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  Guide(std::shared_ptr<const TokenTrie> tokens, std::shared_ptr<const Grammar> grammar, GuideLimits limits = {});

  const TokenTrie& tokens() const { return *tokens_; }
  // Of memory, about, beside the vocabulary, which guides share.
  std::size_t bytes() const;
  // Forgets all but the grammar.
  void forget();

 private:
  friend class GuidedText;

  Matcher::State follow(Matcher::State state, TokenId token);
  // Empty where it takes too much to tell. `state` may get another number.
  void find_mask(Matcher::State& state, TokenMask& mask);

  // As little of a mask as it takes to make it again: after most tokens few others may come, or most of those that a
  // JSON string may hold.
  struct KeptMask {
    const TokenMask* base = nullptr;                               // of the vocabulary; null: no token
    std::vector<std::pair<std::uint32_t, std::uint32_t>> words{};  // [] place, word: where it differs from the base
    bool takes_too_much = false;
  };
  static void keep_words(const TokenMask& mask, KeptMask& kept);

  std::shared_ptr<const TokenTrie> tokens_;
  std::shared_ptr<const Grammar> grammar_;
  std::size_t grammar_bytes_;
  GuideLimits limits_;
  Matcher matcher_;
  std::unordered_map<Matcher::State, KeptMask> masks_;  // by states of the matcher, when its epoch was this one:
  std::uint64_t masks_epoch_ = 0;
  std::size_t mask_bytes_ = 0;  // of all of them
};

// How far one sequence's text is. It follows from the guide and the tokens alone, so a sequence that begins again is
// where it was once it has been told its tokens.
class GuidedText {
 public:
  void append(TokenId token) { unread_.push_back(token); }
  // Sets the bits of the tokens that may come next: those with which the text can still become what the guide asks for,
  // and where it is that already, the `ends`, which are never part of a text. No bit: there is no such token.
  void allow(Guide& guide, std::span<const TokenId> ends, TokenMask& mask);

 private:
  std::vector<TokenId> unread_;          // appended since allow() was called last
  std::optional<Matcher::Saved> place_;  // behind the others; none: at the beginning
  Matcher::State state_ = Matcher::kDead;
  std::uint64_t epoch_ = 0;  // of a matcher, which has the place as state_
};

}  // namespace computron
