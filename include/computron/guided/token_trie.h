// A vocabulary as a tree of the bytes that its tokens add to a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "computron/base/types.h"
#include "computron/guided/matcher.h"

namespace computron {

// A bit for each token: token t is bit t % 32 of word t / 32.
using TokenMask = std::vector<std::uint32_t>;

class TokenTrie {
 public:
  static constexpr std::size_t kLongest = 1024;  // bytes; longer tokens are never allowed

  // texts[t] is what token t adds; a token that adds nothing, as special ones, is never allowed. `vocab`: of the model.
  TokenTrie(const std::vector<std::string>& texts, std::size_t vocab);

  std::size_t vocab() const { return vocab_; }
  std::size_t words() const { return (vocab_ + 31) / 32; }
  const std::string& text(TokenId token) const { return texts_[static_cast<std::size_t>(token)]; }

  // The tokens after which a text at `state` can still go on or end. False where it takes more to tell than kMaxWork,
  // or than kMaxPathBytes of memory for the states of one token's bytes, which follows from grammar, text so far and
  // vocabulary alone; the mask is then incomplete.
  //
  // Has the matcher forget what it has found out whenever that takes more than `most_bytes` (Matcher::kept_bytes()),
  // but for the states of the token that is being tried; `state` gets another number then. That changes no mask.
  static constexpr std::size_t kMaxWork = 16'000'000;  // of Matcher::cost
  static constexpr std::size_t kMaxPathBytes = std::size_t{6} << 20;
  bool allow(Matcher& matcher, Matcher::State& state, TokenMask& mask, std::size_t most_bytes) const;
  // The mask that allow() begins with, from which most of its words do not differ; null: no token. Lives as long as
  // this.
  const TokenMask* base(const Matcher& matcher, Matcher::State state) const;

  // Of memory.
  std::size_t bytes() const;
  // What a vocabulary of so many tokens takes, about; its texts are not known before it is read.
  static std::size_t estimated_bytes(std::size_t vocab) { return 128 * vocab; }

 private:
  // In the order of a depth-first walk.
  struct Node {
    std::uint8_t byte = 0;
    std::uint16_t depth = 0;   // of the byte in the token: 1, 2, ...
    std::uint32_t end = 0;     // the first node that is not below this one
    std::uint32_t tokens = 0;  // of this text: tokens_[tokens] to tokens_[of the next node]
  };
  struct Tree {
    std::vector<Node> nodes;
    std::vector<TokenId> tokens;
  };
  static constexpr std::size_t kLongestPlain = 64;  // characters

  Tree make_tree(std::vector<TokenId> tokens) const;
  static bool walk(const Tree& tree, Matcher& matcher, Matcher::State& state, TokenMask& mask, std::size_t most_bytes);

  std::size_t vocab_;
  std::vector<std::string> texts_;
  Tree all_;
  // Most tokens are whole characters that may stand in a JSON string as they are: what a string may hold is found
  // without a walk through them.
  Tree not_plain_;
  std::vector<TokenMask> plain_;  // [n] those of at most n characters
};

}  // namespace computron
