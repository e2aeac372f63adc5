// The step that turns a word into tokens: tokenizer.json's `model`.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/regex.h"
#include "src/text/vocabulary.h"

namespace computron {

// Tokens of words that came before: most words come again.
class WordCache {
 public:
  // Appends the word's tokens; false if it is not known.
  bool find(std::string_view word, std::vector<TokenId>& out) const;
  void put(std::string_view word, const TokenId* tokens, std::size_t count);

 private:
  struct Span {
    std::uint32_t begin = 0, count = 0;
  };
  std::unordered_map<std::string, Span, TextHash, std::equal_to<>> spans_;
  std::vector<TokenId> tokens_;
};

// What a thread needs to encode.
struct EncodeScratch {
  // A token of a word that is being put together. Merged ones are out of the chain and have no bytes.
  struct Symbol {
    TokenId token = 0;
    std::int32_t previous = -1, next = -1;
    std::uint32_t bytes = 0;
  };
  struct Merge {
    std::uint32_t rank = 0;
    std::int32_t at = 0;
    TokenId made = 0;
  };
  // The last token of the best way to a place in a word, and a token of the best way through it (Unigram).
  struct Way {
    double score = 0;
    std::uint32_t bytes = 0;
    TokenId token = kNoToken;
  };
  struct Piece {
    TextRange range;
    TokenId token = 0;
  };
  WordCache cache;
  std::vector<Symbol> symbols;
  std::vector<Merge> queue;  // a heap, the lowest rank and then the leftmost first
  std::vector<Way> ways;
  std::vector<Piece> pieces;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of a word. Thread-safe but for `scratch`.
  virtual void encode(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& out) const = 0;
};

// BPE: begins with the word's characters, or bytes, and joins neighbours, the pair of the lowest rank first, the
// leftmost of those.
struct BpeOptions {
  TokenId unknown = kNoToken;  // stands for characters without a token; kNoToken: they are left out
  bool fuse_unknown = false;   // one for a run of them
  bool byte_fallback = false;  // a character without a token becomes its bytes' tokens
  bool ignore_merges = false;  // a word that is a token is that token
  bool spells_bytes = false;   // the vocabulary's texts spell bytes
};
using Merges = std::vector<std::pair<std::string, std::string>>;  // in order of rank
// CheckpointError naming a merge of what is not in the vocabulary. Copies what it needs of the vocabulary.
std::unique_ptr<TokenModel> make_bpe_model(const Vocabulary& vocabulary, const Merges& merges,
                                           const BpeOptions& options);

// WordPiece: the longest token that a word begins with, then the longest continuation, ...; one unknown for the word
// where that leads nowhere. Copies what it needs of the vocabulary.
struct WordPieceOptions {
  TokenId unknown = kNoToken;
  std::string prefix = "##";  // of continuations
  std::size_t max_characters = 100;
};
std::unique_ptr<TokenModel> make_word_piece_model(const Vocabulary& vocabulary, const WordPieceOptions& options);

// Unigram: of all ways to cut a word into tokens the one with the highest sum of their scores. A character that is no
// token is unknown, and a run of such is one. Copies what it needs of the vocabulary.
struct UnigramOptions {
  std::vector<double> scores;  // by token, at least one
  TokenId unknown = kNoToken;  // a token
  bool byte_fallback = false;  // a run of unknown characters becomes its bytes' tokens
};
std::unique_ptr<TokenModel> make_unigram_model(const Vocabulary& vocabulary, UnigramOptions options);

// CheckpointError if the vocabulary is too large for a TextFinder.
void check_finder_size(const Vocabulary& vocabulary, const char* model);

// Reads `model` but for its vocabulary, which was read from it. CheckpointError naming what is not
// supported.
std::unique_ptr<TokenModel> make_token_model(const JsonAt& json, const Vocabulary& vocabulary, bool spells_bytes);

// Lines of two texts (merges.txt).
Merges read_merge_lines(std::string_view lines, const std::string& file);

}  // namespace computron
