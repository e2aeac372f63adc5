// tokenizer.json.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/tokenizer_class.h"
#include "src/text/tokenizer_parts.h"
#include "src/text/tokenizer_settings.h"

namespace computron {
namespace {

constexpr std::size_t kMaxAddedTokens = 100'000;
constexpr std::size_t kMaxAddedBytes = std::size_t{1} << 20;

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

// Nothing where the settings want no such token.
std::optional<TokenId> id_of_role(const TokenizerSettings& settings, const char* switch_name, bool by_default,
                                  const char* role, const Tokenizer::Parts& parts) {
  const std::optional<bool> wanted = settings.flag(switch_name);
  const std::string text = settings.role(role);
  if (!wanted.value_or(by_default) || text.empty()) return std::nullopt;
  const auto added = parts.added_ids.find(text);
  const TokenId id = added != parts.added_ids.end() ? added->second : parts.vocabulary.id_of(text);
  if (id != kNoToken) return id;
  if (!wanted) return std::nullopt;
  JsonAt(settings.config, "tokenizer_config.json: ")[role].fail(fmt::format("'{}' is no token", printable(text)));
}

bool adds_tokens(const PostProcessor& processor) {
  return std::ranges::any_of(processor.single, [](const TemplatePart& part) { return !part.tokens.empty(); });
}

// The settings where transformers 4's class goes by them, and where they ask for tokens and tokenizer.json puts none
// around a text; else tokenizer.json.
PostProcessor choose_post_processor(const JsonAt& json, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  PostProcessor own = read_post_processor(json).value_or(PostProcessor{});
  const TokenizerClass& type = tokenizer_class(settings.class_name);
  if (!type.settings_decide && adds_tokens(own)) return own;
  PostProcessor simple = simple_post_processor(settings, parts);
  const bool says = settings.flag("add_bos_token") || settings.flag("add_eos_token");
  const bool decide = type.settings_decide && (says || !type.adds_bos);
  if (simple == own || (!decide && !adds_tokens(simple))) return own;
  parts.warnings.push_back(
      type.settings_decide
          ? fmt::format(
                "of a {} add_bos_token and add_eos_token say which tokens stand around a text, as in transformers "
                "4, and not tokenizer.json: transformers 5 does not read them",
                type.name)
          : fmt::format(
                "add_bos_token and add_eos_token put tokens around a text, since tokenizer.json puts none there: "
                "of {} transformers does not read them",
                settings.class_name.empty() ? "no tokenizer_class" : "a " + printable(settings.class_name)));
  return simple;
}

void check_added_token(const AddedToken& token, const Vocabulary& vocabulary) {
  const std::size_t bytes = std::max(token.content.size(), token.text.size());
  if (bytes > kMaxAddedTokenBytes) {
    throw CheckpointError(fmt::format("the added token '{}' has {} bytes (limit {})", printable(token.content), bytes,
                                      kMaxAddedTokenBytes));
  }
  const TokenId known = vocabulary.id_of(token.content);
  if (known != kNoToken && known != token.id) {
    throw CheckpointError(fmt::format("the added token '{}' has number {}, but {} in the vocabulary",
                                      printable(token.content), token.id, known));
  }
  const std::string* other = known == kNoToken ? vocabulary.text_of(token.id) : nullptr;
  if (other != nullptr) {
    throw CheckpointError(fmt::format("the added token '{}' has number {}, which is '{}' in the vocabulary",
                                      printable(token.content), token.id, printable(*other)));
  }
}

void check_template(const Tokenizer::Parts& parts, const JsonAt& json) {
  for (const auto* list : {&parts.post_processor.single, &parts.post_processor.pair}) {
    for (const TemplatePart& part : *list) {
      for (const TokenId id : part.tokens) {
        if (parts.text_of(id) == nullptr) json.fail(fmt::format("puts token {} around texts, which is none", id));
      }
    }
  }
}

std::string text_of(const AddedToken& token, const Normalizer* normalizer) try {
  return token.normalized && normalizer != nullptr ? normalizer->apply(token.content) : token.content;
} catch (const RequestError& error) {
  throw CheckpointError(fmt::format("the added token '{}': {}", printable(token.content), error.what()));
}

}  // namespace

PostProcessor simple_post_processor(const TokenizerSettings& settings, const Tokenizer::Parts& parts) {
  const bool adds_bos = tokenizer_class(settings.class_name).adds_bos;
  return make_simple_post_processor(id_of_role(settings, "add_bos_token", adds_bos, "bos_token", parts),
                                    id_of_role(settings, "add_eos_token", false, "eos_token", parts));
}

void take_added_tokens(std::vector<AddedToken> tokens, Tokenizer::Parts& parts) {
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  std::size_t bytes = 0;
  for (AddedToken& token : tokens) {
    token.text = text_of(token, parts.normalizer.get());
    check_added_token(token, parts.vocabulary);
    bytes += token.text.size();
    if (bytes > kMaxAddedBytes)
      throw CheckpointError(fmt::format("added tokens of more than {} bytes", kMaxAddedBytes));
    const bool fresh_text = parts.added_ids.emplace(token.content, token.id).second;
    const bool fresh_id = fresh_text && parts.added_by_id.emplace(token.id, token).second;
    if (fresh_id) continue;
    throw CheckpointError(
        fmt::format("the added token '{}' or its number {} stands twice", printable(token.content), token.id));
  }
  parts.added = AddedTokens(std::move(tokens));
}

void read_tokenizer_json(const std::string& text, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  const Json document = parse_json(text, "tokenizer.json");
  const JsonAt json(document, "tokenizer.json: ");
  const JsonAt model = json["model"];
  const JsonAt vocabulary = model["vocab"];
  parts.vocabulary = vocabulary.is_list() ? read_scored_vocabulary(vocabulary) : read_vocabulary(vocabulary);
  parts.normalizer = make_normalizer(json["normalizer"]);
  parts.pre_tokenizer = make_pre_tokenizer(json["pre_tokenizer"]);
  const bool spells_bytes = parts.pre_tokenizer != nullptr && parts.pre_tokenizer->spells_bytes();
  parts.model = make_token_model(model, parts.vocabulary, spells_bytes);
  parts.decoder = make_token_decoder(json["decoder"]);
  take_added_tokens(read_added_tokens(json["added_tokens"]), parts);
  parts.post_processor = choose_post_processor(json["post_processor"], settings, parts);
  check_template(parts, json["post_processor"]);
}

}  // namespace computron
