#include "src/text/token_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/text_finder.h"

namespace computron {
namespace {

constexpr std::size_t kMaxCachedBytes = 64;  // of a word: longer ones hardly come again
constexpr std::size_t kMaxCachedWords = 1 << 16;
constexpr std::size_t kMaxCachedTokens = 1 << 20;
constexpr std::size_t kMaxMerges = std::size_t{1} << 22;
constexpr std::size_t kMaxFinderBytes = std::size_t{4} << 20;  // a byte takes some 100 to be found fast
constexpr std::int64_t kMaxWordCharacters = 1000;

class WordPieceModel : public TokenModel {
 public:
  WordPieceModel(const Vocabulary& vocabulary, const WordPieceOptions& options) : options_(options) {
    check_finder_size(vocabulary, "WordPiece");
    for (const auto& [text, id] : vocabulary.all()) {
      beginnings_.add(text, static_cast<std::size_t>(id));
      if (text.starts_with(options_.prefix)) {
        continuations_.add(std::string_view(text).substr(options_.prefix.size()), static_cast<std::size_t>(id));
      }
    }
  }

  void encode(std::string_view word, EncodeScratch& scratch, std::vector<TokenId>& out) const override {
    if (scratch.cache.find(word, out)) return;
    const std::size_t before = out.size();
    if (count_characters(word) > options_.max_characters || !take_pieces(word, out)) {
      out.resize(before);
      out.push_back(options_.unknown);
    }
    scratch.cache.put(word, out.data() + before, out.size() - before);
  }

 private:
  // False if some part of the word is no token.
  bool take_pieces(std::string_view word, std::vector<TokenId>& out) const {
    for (std::size_t begin = 0; begin < word.size();) {
      const auto piece = (begin == 0 ? beginnings_ : continuations_).longest_at(word, begin);
      if (!piece) return false;
      out.push_back(static_cast<TokenId>(piece->index));
      begin = piece->range.end;
    }
    return true;
  }

  WordPieceOptions options_;
  TextFinder beginnings_, continuations_;
};

TokenId token_named(const JsonAt& json, const Vocabulary& vocabulary) {
  if (json.string_or("").empty()) return kNoToken;
  const TokenId id = vocabulary.id_of(json.string());
  if (id == kNoToken) json.fail(fmt::format("'{}' is not in the vocabulary", printable(json.string())));
  return id;
}

Merges::value_type read_merge(const JsonAt& json) {
  if (json.is_list() && json.list_size() == 2) return {json.item(0).string(), json.item(1).string()};
  const std::string line = json.string();
  const std::size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
    json.fail(fmt::format("'{}' is not two tokens", printable(line)));
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

Merges read_merges(const JsonAt& json) {
  Merges merges;
  if (json.list_size() > kMaxMerges) json.fail(fmt::format("more than {} merges", kMaxMerges));
  merges.reserve(json.list_size());
  for (std::size_t i = 0; i < json.list_size(); ++i) merges.push_back(read_merge(json.item(i)));
  return merges;
}

void refuse_unless_empty(const JsonAt& json) {
  if (!json.string_or("").empty()) json.fail("is not supported");
}

std::unique_ptr<TokenModel> read_bpe_model(const JsonAt& json, const Vocabulary& vocabulary, bool spells_bytes) {
  refuse_unless_empty(json["continuing_subword_prefix"]);
  refuse_unless_empty(json["end_of_word_suffix"]);
  const JsonAt dropout = json["dropout"];
  if (!dropout.is_null() && !dropout.is_zero()) dropout.fail("is not supported: tokens would be drawn");
  BpeOptions options;
  options.unknown = token_named(json["unk_token"], vocabulary);
  options.fuse_unknown = json["fuse_unk"].boolean_or(false);
  options.byte_fallback = json["byte_fallback"].boolean_or(false);
  options.ignore_merges = json["ignore_merges"].boolean_or(false);
  options.spells_bytes = spells_bytes;
  if (spells_bytes && options.byte_fallback) json["byte_fallback"].fail("is not supported beside ByteLevel");
  return make_bpe_model(vocabulary, read_merges(json["merges"]), options);
}

std::unique_ptr<TokenModel> read_word_piece_model(const JsonAt& json, const Vocabulary& vocabulary) {
  WordPieceOptions options;
  options.unknown = token_named(json["unk_token"], vocabulary);
  if (options.unknown == kNoToken) json["unk_token"].fail("missing");
  options.prefix = json["continuing_subword_prefix"].string_or("##");
  const JsonAt characters = json["max_input_chars_per_word"];
  if (!characters.is_null())
    options.max_characters = static_cast<std::size_t>(characters.integer(0, kMaxWordCharacters));
  return make_word_piece_model(vocabulary, options);
}

std::unique_ptr<TokenModel> read_unigram_model(const JsonAt& json, const Vocabulary& vocabulary) {
  UnigramOptions options;
  options.scores = read_scores(json["vocab"]);
  if (options.scores.empty()) json["vocab"].fail("is empty");
  options.unknown = static_cast<TokenId>(json["unk_id"].integer(0, vocabulary.end() - 1));
  options.byte_fallback = json["byte_fallback"].boolean_or(false);
  return make_unigram_model(vocabulary, std::move(options));
}

// Older files leave the type out.
std::string type_of(const JsonAt& json) {
  if (!json["type"].is_null()) return json["type"].string();
  if (json["vocab"].is_list()) return "Unigram";
  return json["merges"].is_null() ? "WordPiece" : "BPE";
}

}  // namespace

bool WordCache::find(std::string_view word, std::vector<TokenId>& out) const {
  if (word.size() > kMaxCachedBytes) return false;
  const auto found = spans_.find(word);
  if (found == spans_.end()) return false;
  const auto begin = tokens_.begin() + found->second.begin;
  out.insert(out.end(), begin, begin + found->second.count);
  return true;
}

void WordCache::put(std::string_view word, const TokenId* tokens, std::size_t count) {
  if (word.size() > kMaxCachedBytes) return;
  if (spans_.size() >= kMaxCachedWords || tokens_.size() + count > kMaxCachedTokens) {
    spans_.clear();
    tokens_.clear();
  }
  spans_.emplace(word, Span{static_cast<std::uint32_t>(tokens_.size()), static_cast<std::uint32_t>(count)});
  tokens_.insert(tokens_.end(), tokens, tokens + count);
}

void check_finder_size(const Vocabulary& vocabulary, const char* model) {
  std::size_t bytes = 0;
  for (const auto& [text, id] : vocabulary.all()) bytes += text.size();
  if (bytes <= kMaxFinderBytes) return;
  throw CheckpointError(fmt::format("a {} vocabulary of {} bytes (limit {})", model, bytes, kMaxFinderBytes));
}

std::unique_ptr<TokenModel> make_word_piece_model(const Vocabulary& vocabulary, const WordPieceOptions& options) {
  return std::make_unique<WordPieceModel>(vocabulary, options);
}

std::unique_ptr<TokenModel> make_token_model(const JsonAt& json, const Vocabulary& vocabulary, bool spells_bytes) {
  const std::string type = type_of(json);
  if (type != "Unigram" && json["vocab"].is_list()) json["vocab"].fail("must be an object of numbers by token");
  if (type == "BPE") return read_bpe_model(json, vocabulary, spells_bytes);
  if (spells_bytes) json["type"].fail(fmt::format("'{}' behind ByteLevel is not supported", printable(type)));
  if (type == "WordPiece") return read_word_piece_model(json, vocabulary);
  if (type == "Unigram") return read_unigram_model(json, vocabulary);
  json["type"].fail(fmt::format("the model '{}' is not supported", printable(type)));
}

Merges read_merge_lines(std::string_view lines, const std::string& file) {
  Merges merges;
  for (std::size_t number = 1; !lines.empty(); ++number) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos || !is_utf8(line)) {
      throw CheckpointError(fmt::format("{}: line {} is not two tokens", file, number));
    }
    if (merges.size() == kMaxMerges) throw CheckpointError(fmt::format("{}: more than {} merges", file, kMaxMerges));
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

}  // namespace computron
