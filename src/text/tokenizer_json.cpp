// tokenizer.json.

#include <fmt/format.h>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "src/text/tokenizer_parts.h"
#include "src/text/utf8.h"

namespace computron {
namespace {

constexpr std::size_t kMaxAddedTokens = 100'000;

AddedToken read_added_token(const JsonAt& json) {
  AddedToken token;
  token.id = static_cast<TokenId>(json["id"].integer(0, kMaxTokenId));
  token.content = json["content"].string();
  token.single_word = json["single_word"].boolean_or(false);
  token.lstrip = json["lstrip"].boolean_or(false);
  token.rstrip = json["rstrip"].boolean_or(false);
  token.special = json["special"].boolean_or(false);
  token.normalized = json["normalized"].boolean_or(!token.special);
  return token;
}

std::vector<AddedToken> read_added_tokens(const JsonAt& list) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (list.list_size() > kMaxAddedTokens) list.fail(fmt::format("more than {} tokens", kMaxAddedTokens));
  for (std::size_t i = 0; i < list.list_size(); ++i) tokens.push_back(read_added_token(list.item(i)));
  return tokens;
}

// How a token's text is to be read: the decoder tells.
Tokenizer::Parts::Spelling spelling_of(const JsonAt& decoder) {
  if (decoder.is_null()) return Tokenizer::Parts::kPlain;
  const std::string type = decoder["type"].string();
  if (type == "ByteLevel") return Tokenizer::Parts::kBytes;
  if (type == "Metaspace" || type == "Replace" || type == "ByteFallback") return Tokenizer::Parts::kMetaspace;
  if (type == "WordPiece") return Tokenizer::Parts::kWordPiece;
  if (type != "Sequence") return Tokenizer::Parts::kPlain;
  const JsonAt list = decoder["decoders"];
  for (std::size_t i = 0; i < list.list_size(); ++i) {
    const auto spelling = spelling_of(list.item(i));
    if (spelling != Tokenizer::Parts::kPlain) return spelling;
  }
  return Tokenizer::Parts::kPlain;
}

std::optional<TokenId> id_of_role(const TokenizerSettings& settings, const char* switch_name, const char* role,
                                  const Tokenizer::Parts& parts) {
  const JsonAt config(settings.config, "tokenizer_config.json");
  if (config.is_null() || !config[switch_name].boolean_or(false)) return std::nullopt;
  const std::string text = settings.role(role);
  if (text.empty()) return std::nullopt;
  const auto added = parts.added_ids.find(text);
  const TokenId id = added != parts.added_ids.end() ? added->second : parts.vocabulary.id_of(text);
  if (id == kNoToken) config[role].fail(fmt::format("'{}' is no token", printable(text)));
  return id;
}

}  // namespace

// Where the file has a post-processor, it decides; without one the settings say what stands around a text.
PostProcessor simple_post_processor(const TokenizerSettings& settings, const Tokenizer::Parts& parts) {
  return make_simple_post_processor(id_of_role(settings, "add_bos_token", "bos_token", parts),
                                    id_of_role(settings, "add_eos_token", "eos_token", parts));
}

void take_added_tokens(std::vector<AddedToken> tokens, Tokenizer::Parts& parts) {
  std::vector<AddedToken> kept;
  const Normalizer* normalizer = parts.normalizer.get();
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    if (token.content.size() > kMaxAddedTokenBytes) {
      throw CheckpointError(fmt::format("the added token '{}' has {} bytes (limit {})", printable(token.content),
                                        token.content.size(), kMaxAddedTokenBytes));
    }
    const TokenId in_vocabulary = parts.vocabulary.id_of(token.content);
    if (in_vocabulary != kNoToken && in_vocabulary != token.id) {
      throw CheckpointError(fmt::format("the added token '{}' has number {}, but {} in the vocabulary",
                                        printable(token.content), token.id, in_vocabulary));
    }
    const std::string* other = in_vocabulary == kNoToken ? parts.vocabulary.text_of(token.id) : nullptr;
    if (other != nullptr) {
      throw CheckpointError(fmt::format("the added token '{}' has number {}, which is '{}' in the vocabulary",
                                        printable(token.content), token.id, printable(*other)));
    }
    token.text = token.normalized && normalizer != nullptr ? normalizer->apply(token.content) : token.content;
    const bool fresh_text = parts.added_ids.emplace(token.content, token.id).second;
    const bool fresh_id = fresh_text && parts.added_by_id.emplace(token.id, token).second;
    if (!fresh_id) {
      throw CheckpointError(
          fmt::format("the added token '{}' or its number {} stands twice", printable(token.content), token.id));
    }
    kept.push_back(std::move(token));
  }
  parts.added = AddedTokens(std::move(kept));
}

void read_tokenizer_json(const std::string& text, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  const Json document = parse_json(text, "tokenizer.json");
  const JsonAt json(document, "tokenizer.json: ");
  const JsonAt model = json["model"];
  parts.vocabulary = read_vocabulary(model["vocab"]);
  parts.normalizer = make_normalizer(json["normalizer"]);
  parts.pre_tokenizer = make_pre_tokenizer(json["pre_tokenizer"]);
  const bool spells_bytes = parts.pre_tokenizer != nullptr && parts.pre_tokenizer->spells_bytes();
  parts.model = make_token_model(model, parts.vocabulary, spells_bytes);
  parts.decoder = make_token_decoder(json["decoder"]);
  parts.spelling = spelling_of(json["decoder"]);
  take_added_tokens(read_added_tokens(json["added_tokens"]), parts);
  const auto post_processor = read_post_processor(json["post_processor"]);
  parts.post_processor = post_processor || !json["post_processor"].is_null() ? post_processor.value_or(PostProcessor{})
                                                                             : simple_post_processor(settings, parts);
}

}  // namespace computron
