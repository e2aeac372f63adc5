#include "computron/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/utf8.h"
#include "computron/text/incremental_decoder.h"
#include "src/text/normalizer.h"
#include "src/text/tokenizer_parts.h"
#include "src/text/tokenizer_settings.h"
#include "src/text/work_limit.h"

namespace computron {
namespace {

void check_sizes(const TokenizerFiles& files) {
  for (const auto& [name, content] : files) {
    if (content.size() <= kMaxTokenizerFileBytes) continue;
    throw CheckpointError(fmt::format("{}: {} bytes (limit {})", name, content.size(), kMaxTokenizerFileBytes));
  }
}

std::size_t count_special(const std::vector<TemplatePart>& parts) {
  std::size_t count = 0;
  for (const TemplatePart& part : parts) count += part.tokens.size();
  return count;
}

// Tokens that a text may have beside special ones, all of them at most `most`.
std::size_t room_beside(std::size_t special, std::size_t most) {
  if (special < most) return most - special;
  throw RequestError(400, "invalid_parameter",
                     fmt::format("cut to {} tokens, it has no room beside its {} special tokens", most, special));
}

using TokenSpan = std::span<const TokenId>;

TokenSpan cut_to(TokenSpan tokens, std::size_t most, bool keep_end) {
  if (tokens.size() <= most) return tokens;
  return keep_end ? tokens.last(most) : tokens.first(most);
}

// The lengths that the library's `longest_first` comes to: of an odd room the longer text has one more.
void cut_pair(TokenSpan& first, TokenSpan& second, std::size_t room, bool keep_end) {
  if (first.size() + second.size() <= room) return;
  const bool first_is_shorter = first.size() <= second.size();
  TokenSpan& shorter = first_is_shorter ? first : second;
  TokenSpan& longer = first_is_shorter ? second : first;
  const bool both = shorter.size() > room / 2;
  longer = cut_to(longer, both ? room - room / 2 : room - shorter.size(), keep_end);
  if (both) shorter = cut_to(shorter, room / 2, keep_end);
}

}  // namespace

const std::string* Tokenizer::Parts::text_of(TokenId token) const {
  const auto added = added_by_id.find(token);
  return added != added_by_id.end() ? &added->second.text : vocabulary.text_of(token);
}

bool Tokenizer::Parts::is_special(TokenId token) const {
  const auto added = added_by_id.find(token);
  return added != added_by_id.end() && added->second.special && added->second.text == added->second.content;
}

Tokenizer::Tokenizer(const TokenizerFiles& files, std::string_view model_type) {
  check_sizes(files);
  const TokenizerSettings settings(files, model_type);
  auto parts = std::make_unique<Parts>();
  if (files.contains("tokenizer.json")) {
    read_tokenizer_json(files.at("tokenizer.json"), settings, *parts);
  } else if (files.contains("vocab.json") && files.contains("merges.txt")) {
    read_bpe_files(files, settings, *parts);
  } else if (files.contains("vocab.txt")) {
    read_word_piece_files(files, settings, *parts);
  } else if (files.contains("tokenizer.model")) {
    throw CheckpointError(
        "tokenizer.model alone is not supported: save the tokenizer with transformers, which writes "
        "tokenizer.json");
  } else {
    throw CheckpointError("no tokenizer: neither tokenizer.json nor vocab.json and merges.txt nor vocab.txt");
  }
  parts->chat_template = settings.chat_template;
  parts->bos_token = settings.role("bos_token");
  parts->eos_token = settings.role("eos_token");
  parts_ = std::move(parts);
}

Tokenizer::~Tokenizer() = default;

std::string Tokenizer::decode(std::span<const TokenId> tokens) const {
  IncrementalDecoder decoder(*this);
  std::string text;
  for (const TokenId token : tokens) decoder.push(token, text);
  decoder.finish(text);
  return text;
}

std::string Tokenizer::token_bytes(TokenId token) const {
  const std::string* text = parts_->text_of(token);
  if (text == nullptr) return "";
  return parts_->is_special(token) ? *text : parts_->decoder.within_text(*text);
}

std::optional<TokenId> Tokenizer::token_id(std::string_view text) const {
  const auto added = parts_->added_ids.find(text);
  const TokenId id = added != parts_->added_ids.end() ? added->second : parts_->vocabulary.id_of(text);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

bool Tokenizer::has_added_token(std::string_view text) const { return parts_->added_ids.contains(text); }
bool Tokenizer::is_special(TokenId token) const { return parts_->is_special(token); }

TokenId Tokenizer::tokens_end() const {
  TokenId end = parts_->vocabulary.end();
  for (const auto& [id, token] : parts_->added_by_id) end = std::max(end, id + 1);
  return end;
}

const std::string& Tokenizer::chat_template() const { return parts_->chat_template; }
const std::string& Tokenizer::bos_token() const { return parts_->bos_token; }
const std::string& Tokenizer::eos_token() const { return parts_->eos_token; }
const std::vector<std::string>& Tokenizer::warnings() const { return parts_->warnings; }

struct Encoder::Scratch : EncodeScratch {};

Encoder::Encoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), scratch_(std::make_unique<Scratch>()) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

std::vector<TokenId> Encoder::encode(std::string_view text, const EncodeOptions& options) {
  std::vector<TokenId> plain;
  encode_plain(text, options.lower_case, plain);
  const std::vector<TemplatePart>& parts = tokenizer_->parts_->post_processor.single;
  const std::size_t room = room_beside(options.special_tokens ? count_special(parts) : 0, options.most);
  const TokenSpan kept = cut_to(plain, room, options.keep_end);
  if (!options.special_tokens) return {kept.begin(), kept.end()};
  std::vector<TokenId> tokens;
  for (const TemplatePart& part : parts) {
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    if (part.kind == TemplatePart::kFirst) tokens.insert(tokens.end(), kept.begin(), kept.end());
  }
  return tokens;
}

EncodedPair Encoder::encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) {
  std::vector<TokenId> plain[2];
  encode_plain(first, options.lower_case, plain[0]);
  encode_plain(second, options.lower_case, plain[1]);
  return encode_pair(TokenSpan(plain[0]), plain[1], options);
}

EncodedPair Encoder::encode_pair(TokenSpan first, TokenSpan second, const EncodeOptions& options) const {
  const std::vector<TemplatePart>& parts = tokenizer_->parts_->post_processor.pair;
  cut_pair(first, second, room_beside(count_special(parts), options.most), options.keep_end);
  EncodedPair pair;
  for (const TemplatePart& part : parts) {
    const TokenSpan tokens = part.kind == TemplatePart::kTokens  ? TokenSpan(part.tokens)
                             : part.kind == TemplatePart::kFirst ? first
                                                                 : second;
    pair.tokens.insert(pair.tokens.end(), tokens.begin(), tokens.end());
    pair.token_type_ids.resize(pair.tokens.size(), part.type);
  }
  return pair;
}

void Encoder::encode_plain(std::string_view text, bool lower_case, std::vector<TokenId>& out) {
  if (!is_utf8(text)) throw RequestError(400, "invalid_utf8", "the text is not UTF-8");
  const WorkLimit limit(text.size());
  const Tokenizer::Parts& parts = *tokenizer_->parts_;
  for (const TextPart& part : parts.added.split_original(text)) {
    if (part.is_token) {
      out.push_back(part.token);
      continue;
    }
    std::string normal(text.substr(part.range.begin, part.range.size()));
    if (lower_case) normal = lowercase(normal);
    if (parts.normalizer) normal = parts.normalizer->apply(std::move(normal));
    for (const TextPart& inner : parts.added.split_normalized(normal)) {
      if (inner.is_token) {
        out.push_back(inner.token);
      } else {
        encode_words(std::string_view(normal).substr(inner.range.begin, inner.range.size()),
                     part.range.begin == 0 && inner.range.begin == 0, out);
      }
    }
  }
}

void Encoder::encode_words(std::string_view text, bool at_start, std::vector<TokenId>& out) {
  const Tokenizer::Parts& parts = *tokenizer_->parts_;
  if (!parts.pre_tokenizer) return parts.model->encode(text, *scratch_, out);
  Words words{std::string(text), {{0, text.size()}}, at_start};
  parts.pre_tokenizer->cut(words);
  for (const TextRange& word : words.ranges) {
    parts.model->encode(std::string_view(words.text).substr(word.begin, word.size()), *scratch_, out);
  }
}

}  // namespace computron
