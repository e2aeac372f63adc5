#include "computron/guided/token_trie.h"

#include <algorithm>
#include <optional>

#include "computron/base/utf8.h"

namespace computron {
namespace {

void set_bit(TokenMask& mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1u << (static_cast<unsigned>(token) % 32);
}

// Characters of a text that a JSON string may hold as it is.
std::optional<std::size_t> plain_characters(const std::string& text) {
  std::size_t characters = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || c == '"' || c == '\\') return std::nullopt;
    if ((byte & 0xC0) != 0x80) ++characters;
  }
  if (!is_utf8(text)) return std::nullopt;
  return characters;
}

}  // namespace

TokenTrie::TokenTrie(const std::vector<std::string>& texts, std::size_t vocab) : vocab_(vocab), texts_(texts) {
  texts_.resize(vocab_);
  std::vector<TokenId> all, not_plain;
  plain_.assign(1, TokenMask(words(), 0));
  std::vector<std::pair<std::size_t, TokenId>> plain;  // characters, token
  for (std::size_t t = 0; t < vocab_; ++t) {
    const std::string& text = texts_[t];
    if (text.empty() || text.size() > kLongest) continue;
    all.push_back(static_cast<TokenId>(t));
    const auto characters = plain_characters(text);
    if (characters && *characters <= kLongestPlain) {
      plain.emplace_back(*characters, static_cast<TokenId>(t));
    } else {
      not_plain.push_back(static_cast<TokenId>(t));
    }
  }
  std::ranges::sort(plain);
  for (const auto& [characters, token] : plain) {
    while (plain_.size() <= characters) plain_.push_back(plain_.back());
    set_bit(plain_.back(), token);
  }
  all_ = make_tree(std::move(all));
  not_plain_ = make_tree(std::move(not_plain));
}

TokenTrie::Tree TokenTrie::make_tree(std::vector<TokenId> tokens) const {
  std::ranges::sort(tokens, [this](TokenId a, TokenId b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  Tree tree;
  std::vector<std::uint32_t> path;  // open nodes
  const auto close = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      tree.nodes[path.back()].end = static_cast<std::uint32_t>(tree.nodes.size());
    }
  };
  std::string_view last;
  for (const TokenId token : tokens) {
    const std::string& text = this->text(token);
    const auto shared = static_cast<std::size_t>(std::ranges::mismatch(last, text).in2 - text.begin());
    close(shared);
    for (std::size_t i = shared; i < text.size(); ++i) {
      path.push_back(static_cast<std::uint32_t>(tree.nodes.size()));
      tree.nodes.push_back({.byte = static_cast<std::uint8_t>(text[i]),
                            .depth = static_cast<std::uint16_t>(i + 1),
                            .tokens = static_cast<std::uint32_t>(tree.tokens.size())});
    }
    tree.tokens.push_back(token);
    last = text;
  }
  close(0);
  tree.nodes.push_back({.tokens = static_cast<std::uint32_t>(tree.tokens.size())});  // behind the last one
  tree.nodes.shrink_to_fit();
  tree.tokens.shrink_to_fit();
  return tree;
}

bool TokenTrie::walk(const Tree& tree, Matcher& matcher, Matcher::State& state, TokenMask& mask,
                     std::size_t most_bytes) {
  std::vector<Matcher::State> path = {state};  // [depth] behind that many bytes of the token
  std::vector<std::size_t> bytes = {0};        // [depth] that its states take so far
  std::size_t work = 0;
  bool within = true;
  const auto end = static_cast<std::uint32_t>(tree.nodes.size() - 1);
  for (std::uint32_t i = 0; within && i < end;) {
    const Node& node = tree.nodes[i];
    path.resize(node.depth);
    bytes.resize(node.depth);
    const Matcher::State from = path.back(), to = matcher.next(from, node.byte);
    work += matcher.cost(from, node.byte);
    path.push_back(to);
    if (matcher.kept_bytes() > most_bytes) matcher.keep_only(path);
    within = work <= kMaxWork;
    if (to == Matcher::kDead) {
      i = node.end;
      continue;
    }
    bytes.push_back(bytes.back() + matcher.bytes_of(path.back()));
    within = within && bytes.back() <= kMaxPathBytes;
    for (std::uint32_t k = node.tokens; k < tree.nodes[i + 1].tokens; ++k) set_bit(mask, tree.tokens[k]);
    ++i;
  }
  state = path.front();
  return within;
}

const TokenMask* TokenTrie::base(const Matcher& matcher, Matcher::State state) const {
  const Matcher::FreeText text = matcher.free_text(state);
  const std::size_t longest = plain_.size() - 1;
  if (text.characters == 0 || (text.characters < longest && !text.alone)) return nullptr;
  return &plain_[std::min<std::size_t>(text.characters, longest)];
}

bool TokenTrie::allow(Matcher& matcher, Matcher::State& state, TokenMask& mask, std::size_t most_bytes) const {
  const TokenMask* const plain = base(matcher, state);
  if (plain == nullptr) {
    mask.assign(words(), 0);
  } else {
    mask = *plain;
  }
  return walk(plain == nullptr ? all_ : not_plain_, matcher, state, mask, most_bytes);
}

std::size_t TokenTrie::bytes() const {
  constexpr std::size_t kWithin = 15;  // characters that a text has without memory of its own
  std::size_t bytes = texts_.capacity() * sizeof(std::string) + plain_.size() * words() * sizeof(TokenMask::value_type);
  for (const std::string& text : texts_) bytes += text.capacity() > kWithin ? text.capacity() + 1 : 0;
  for (const Tree* tree : {&all_, &not_plain_}) {
    bytes += tree->nodes.capacity() * sizeof(Node) + tree->tokens.capacity() * sizeof(TokenId);
  }
  return bytes;
}

}  // namespace computron
