#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/token_model.h"

namespace computron {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

// Rank and product of a pair of tokens: open addressing, at most half full.
class MergeTable {
 public:
  struct Entry {
    std::uint64_t pair = kEmpty;
    std::uint32_t rank = 0;
    TokenId made = 0;
  };

  explicit MergeTable(std::size_t merges) : entries_(std::bit_ceil(std::max<std::size_t>(2 * merges, 2))) {
    shift_ = 64 - std::countr_zero(entries_.size());
  }

  // A later merge of the same pair counts.
  void put(TokenId left, TokenId right, std::uint32_t rank, TokenId made) {
    entries_[place(key(left, right))] = {key(left, right), rank, made};
  }
  const Entry* find(TokenId left, TokenId right) const {
    const Entry& entry = entries_[place(key(left, right))];
    return entry.pair == kEmpty ? nullptr : &entry;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t key(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t pair) const {
    std::size_t at = static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15u >> shift_);
    while (entries_[at].pair != kEmpty && entries_[at].pair != pair) at = (at + 1) & (entries_.size() - 1);
    return at;
  }

  std::vector<Entry> entries_;
  int shift_ = 0;
};

// Tokens of single characters.
class CharacterTokens {
 public:
  CharacterTokens() { ascii_.fill(kNoToken); }
  void put(char32_t c, TokenId token) { c < ascii_.size() ? ascii_[c] = token : others_[c] = token; }
  TokenId find(char32_t c) const {
    if (c < ascii_.size()) return ascii_[c];
    const auto found = others_.find(c);
    return found == others_.end() ? kNoToken : found->second;
  }

 private:
  std::array<TokenId, 256> ascii_;  // in a vocabulary of bytes: all there is
  std::unordered_map<char32_t, TokenId> others_;
};

// The lowest rank first, the leftmost of those.
bool comes_later(const EncodeScratch::Merge& a, const EncodeScratch::Merge& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

class BpeModel : public TokenModel {
 public:
  BpeModel(const Vocabulary& vocabulary, const Merges& merges, const BpeOptions& options)
      : options_(options), merges_(merges.size()) {
    for (const auto& [text, id] : vocabulary.all()) take_token(text, id);
    if (options_.byte_fallback) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        byte_tokens_[byte] = vocabulary.id_of(byte_token(static_cast<unsigned char>(byte)));
      }
    }
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      take_merge(vocabulary, merges[rank], static_cast<std::uint32_t>(rank));
    }
    cuts_words_ = !options_.spells_bytes && !joins_over_words(merges) && vocabulary.id_of(kMetaspace) != kNoToken;
  }

  void encode(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& out) const override {
    if (options_.ignore_merges) {
      const auto whole = whole_words_.find(word);
      if (whole != whole_words_.end()) {
        out.push_back(whole->second);
        return;
      }
    }
    if (!cuts_words_) return encode_cached(word, scratch, out);
    for (std::size_t begin = 0; begin < word.size();) {
      const std::size_t end = end_of_word(word, begin);
      encode_cached(word.substr(begin, end - begin), scratch, out);
      begin = end;
    }
  }

 private:
  void take_token(const std::string& text, TokenId id) {
    std::string bytes;
    if (options_.spells_bytes) {
      if (!spelled_bytes(text, bytes)) return;  // no word holds it
      if (bytes.size() == 1) characters_.put(static_cast<unsigned char>(bytes[0]), id);
    } else {
      std::size_t at = 0;
      const char32_t first = text.empty() ? 0 : next_character(text, at);
      if (!text.empty() && at == text.size()) characters_.put(first, id);
      bytes = text;
    }
    if (options_.ignore_merges) whole_words_.emplace(std::move(bytes), id);
  }

  void take_merge(const Vocabulary& vocabulary, const Merges::value_type& merge, std::uint32_t rank) {
    const auto id_of = [&](const std::string& text) {
      const TokenId id = vocabulary.id_of(text);
      if (id != kNoToken) return id;
      throw CheckpointError(fmt::format("merge {} ('{}' '{}'): '{}' is not in the vocabulary", rank,
                                        printable(merge.first), printable(merge.second), printable(text)));
    };
    const TokenId left = id_of(merge.first), right = id_of(merge.second);
    merges_.put(left, right, rank, id_of(merge.first + merge.second));
  }

  // Whether some merge has a word's end before its mark: only then does a word's beginning depend on what is before it.
  static bool joins_over_words(const Merges& merges) {
    return std::any_of(merges.begin(), merges.end(), [](const Merges::value_type& merge) {
      return merge.second.starts_with(kMetaspace) && !merge.first.ends_with(kMetaspace);
    });
  }

  // Marks at the beginning of a word belong to it.
  static std::size_t end_of_word(std::string_view text, std::size_t begin) {
    std::size_t end = begin;
    while (text.substr(end).starts_with(kMetaspace)) end += kMetaspace.size();
    return std::min(text.find(kMetaspace, end), text.size());
  }

  void encode_cached(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& out) const {
    if (scratch.cache.find(word, out)) return;
    const std::size_t before = out.size();
    merge_word(word, scratch, out);
    scratch.cache.put(word, out.data() + before, out.size() - before);
  }

  void merge_word(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& out) const {
    scratch.symbols.clear();
    options_.spells_bytes ? begin_with_bytes(word, scratch) : begin_with_characters(word, scratch);
    merge_all(scratch);
    for (const EncodeScratch::Symbol& symbol : scratch.symbols) {
      if (symbol.bytes > 0) out.push_back(symbol.token);
    }
  }

  static void add(EncodeScratch& scratch, TokenId token, std::size_t bytes) {
    const auto at = static_cast<std::int32_t>(scratch.symbols.size());
    if (at > 0) scratch.symbols.back().next = at;
    scratch.symbols.push_back({token, at - 1, -1, static_cast<std::uint32_t>(bytes)});
  }

  // Characters without a token of their own, until one follows that has one.
  struct Unknown {
    bool any = false;
    std::size_t bytes = 0;
  };
  void end_unknown(Unknown& unknown, EncodeScratch& scratch) const {
    if (unknown.any) add(scratch, options_.unknown, unknown.bytes);
    unknown = {};
  }
  void take_unknown(std::size_t bytes, Unknown& unknown, EncodeScratch& scratch) const {
    if (options_.unknown == kNoToken) return;
    if (!options_.fuse_unknown) end_unknown(unknown, scratch);
    unknown = {true, unknown.bytes + bytes};
  }

  void begin_with_bytes(std::string_view word, EncodeScratch& scratch) const {
    Unknown unknown;
    for (const char c : word) {
      const TokenId token = characters_.find(static_cast<unsigned char>(c));
      if (token == kNoToken) {
        take_unknown(1, unknown, scratch);
        continue;
      }
      end_unknown(unknown, scratch);
      add(scratch, token, 1);
    }
    end_unknown(unknown, scratch);
  }

  void begin_with_characters(std::string_view word, EncodeScratch& scratch) const {
    Unknown unknown;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at;
      const TokenId token = characters_.find(next_character(word, at));
      const std::string_view character = word.substr(begin, at - begin);
      if (token != kNoToken) {
        end_unknown(unknown, scratch);
        add(scratch, token, character.size());
      } else if (has_byte_tokens(character)) {
        for (const char c : character) add(scratch, byte_tokens_[static_cast<unsigned char>(c)], 1);
      } else {
        take_unknown(character.size(), unknown, scratch);
      }
    }
    end_unknown(unknown, scratch);
  }

  bool has_byte_tokens(std::string_view character) const {
    return options_.byte_fallback && std::all_of(character.begin(), character.end(), [this](char c) {
             return byte_tokens_[static_cast<unsigned char>(c)] != kNoToken;
           });
  }

  void propose(std::int32_t at, EncodeScratch& scratch) const {
    const auto& symbols = scratch.symbols;
    if (at < 0 || symbols[at].next < 0) return;
    const MergeTable::Entry* entry = merges_.find(symbols[at].token, symbols[symbols[at].next].token);
    if (entry == nullptr) return;
    scratch.queue.push_back({entry->rank, at, entry->made});
    std::push_heap(scratch.queue.begin(), scratch.queue.end(), comes_later);
  }

  // A proposal still holds if its place makes the same token, be it of another pair: so does the library whose results
  // these are to be.
  bool holds(const EncodeScratch::Merge& merge, const EncodeScratch& scratch) const {
    const EncodeScratch::Symbol& left = scratch.symbols[merge.at];
    if (left.bytes == 0 || left.next < 0) return false;
    const MergeTable::Entry* entry = merges_.find(left.token, scratch.symbols[left.next].token);
    return entry != nullptr && entry->made == merge.made;
  }

  void merge_all(EncodeScratch& scratch) const {
    scratch.queue.clear();
    for (std::size_t at = 0; at + 1 < scratch.symbols.size(); ++at) propose(static_cast<std::int32_t>(at), scratch);
    while (!scratch.queue.empty()) {
      std::pop_heap(scratch.queue.begin(), scratch.queue.end(), comes_later);
      const EncodeScratch::Merge merge = scratch.queue.back();
      scratch.queue.pop_back();
      if (holds(merge, scratch)) join(merge, scratch);
    }
  }

  void join(const EncodeScratch::Merge& merge, EncodeScratch& scratch) const {
    auto& symbols = scratch.symbols;
    EncodeScratch::Symbol& left = symbols[merge.at];
    EncodeScratch::Symbol& right = symbols[left.next];
    left.token = merge.made;
    left.bytes += right.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next >= 0) symbols[left.next].previous = merge.at;
    propose(left.previous, scratch);
    propose(merge.at, scratch);
  }

  BpeOptions options_;
  MergeTable merges_;
  CharacterTokens characters_;
  std::array<TokenId, 256> byte_tokens_{};
  TokensByText whole_words_;
  bool cuts_words_ = false;
};

}  // namespace

std::unique_ptr<TokenModel> make_bpe_model(const Vocabulary& vocabulary, const Merges& merges,
                                           const BpeOptions& options) {
  return std::make_unique<BpeModel>(vocabulary, merges, options);
}

}  // namespace computron
