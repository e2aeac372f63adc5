// Vocabularies without a tokenizer.json: GPT-2's and OPT's two files, BERT's one.

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/error.h"
#include "computron/base/utf8.h"
#include "src/text/tokenizer_parts.h"
#include "src/text/tokenizer_settings.h"

namespace computron {
namespace {

const std::string kNoFile;

const std::string& file(const TokenizerFiles& files, const char* name) {
  const auto found = files.find(name);
  return found == files.end() ? kNoFile : found->second;
}

Json parse_file(const TokenizerFiles& files, const char* name) {
  const std::string& text = file(files, name);
  if (text.empty()) return nullptr;
  Json json = parse_json(text, name);
  if (!json.is_object()) throw CheckpointError(fmt::format("{}: must be an object", name));
  return json;
}

// A token is a text, or an object with its text as `content`.
std::string token_text(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.contains("content") && json["content"].is_string()) {
    return json["content"].get<std::string>();
  }
  return "";
}

// "default" where a list of templates is given.
std::string template_of(const Json& config) {
  if (!config.is_object() || !config.contains("chat_template")) return "";
  const Json& value = config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return "";
  for (const Json& item : value) {
    if (item.is_object() && item.value("name", Json()) == "default")
      return token_text({{"content", item.value("template", Json())}});
  }
  return "";
}

AddedToken read_token(const Json& json, TokenId id) {
  AddedToken token{.id = id, .content = token_text(json), .special = true};
  if (!json.is_object()) return token;
  const JsonAt at(json, "tokenizer_config.json: added_tokens_decoder");
  token.single_word = at["single_word"].boolean_or(false);
  token.lstrip = at["lstrip"].boolean_or(false);
  token.rstrip = at["rstrip"].boolean_or(false);
  token.special = at["special"].boolean_or(true);
  token.normalized = at["normalized"].boolean_or(false);
  return token;
}

// Finds the tokens that stand beside a vocabulary, each once.
class AddedTokenCollector {
 public:
  AddedTokenCollector(const TokenizerSettings& settings, const Vocabulary& vocabulary)
      : settings_(settings), vocabulary_(vocabulary) {}

  std::vector<AddedToken> all() {
    take_decoder();
    take_added();
    for (const char* role :
         {"unk_token", "bos_token", "eos_token", "sep_token", "cls_token", "pad_token", "mask_token"}) {
      take({.id = vocabulary_.id_of(settings_.role(role)), .content = settings_.role(role), .special = true});
    }
    return std::move(tokens_);
  }

 private:
  void take(AddedToken token) {
    if (token.content.empty() || token.id == kNoToken) return;
    for (const AddedToken& other : tokens_) {
      if (other.content == token.content) return;
    }
    tokens_.push_back(std::move(token));
  }

  void take_decoder() {
    if (!settings_.config.is_object() || !settings_.config.contains("added_tokens_decoder")) return;
    const Json& decoder = settings_.config["added_tokens_decoder"];
    if (!decoder.is_object() || decoder.size() > kMaxTokens) {
      throw CheckpointError("tokenizer_config.json: added_tokens_decoder: must be an object of at most 10000 tokens");
    }
    for (const auto& [number, token] : decoder.items()) {
      std::size_t used = 0;
      const bool digits =
          !number.empty() && number.size() < 8 && number.find_first_not_of("0123456789") == std::string::npos;
      if (!digits) throw CheckpointError("tokenizer_config.json: added_tokens_decoder: keys must be numbers of tokens");
      take(read_token(token, static_cast<TokenId>(std::stoi(number, &used))));
    }
  }

  void take_added() {
    if (!settings_.added.is_object()) return;
    if (settings_.added.size() > kMaxTokens) throw CheckpointError("added_tokens.json: more than 10000 tokens");
    for (const auto& [text, id] : settings_.added.items()) {
      const TokenId number = static_cast<TokenId>(JsonAt(id, "added_tokens.json").integer(0, kMaxTokenId));
      take({.id = number, .content = text, .normalized = true, .special = false});
    }
  }

  static constexpr std::size_t kMaxTokens = 10'000;
  const TokenizerSettings& settings_;
  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_;
};

bool setting(const TokenizerSettings& settings, const char* name, bool fallback) {
  return settings.config.is_null() ? fallback
                                   : JsonAt(settings.config, "tokenizer_config.json: ")[name].boolean_or(fallback);
}

}  // namespace

TokenizerSettings::TokenizerSettings(const TokenizerFiles& files)
    : config(parse_file(files, "tokenizer_config.json")),
      roles(parse_file(files, "special_tokens_map.json")),
      added(parse_file(files, "added_tokens.json")),
      chat_template(file(files, "chat_template.jinja")) {
  if (chat_template.empty()) chat_template = template_of(config);
}

std::string TokenizerSettings::role(const char* name) const {
  for (const Json* json : {&config, &roles}) {
    if (json->is_object() && json->contains(name) && !token_text((*json)[name]).empty())
      return token_text((*json)[name]);
  }
  return "";
}

void read_bpe_files(const TokenizerFiles& files, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  const Json document = parse_json(files.at("vocab.json"), "vocab.json");
  parts.vocabulary = read_vocabulary(JsonAt(document, "vocab.json"));
  parts.pre_tokenizer = make_byte_level_pre_tokenizer(setting(settings, "add_prefix_space", false));
  parts.model =
      make_bpe_model(parts.vocabulary, read_merge_lines(files.at("merges.txt"), "merges.txt"), {.spells_bytes = true});
  parts.decoder = make_byte_level_decoder();
  take_added_tokens(AddedTokenCollector(settings, parts.vocabulary).all(), parts);
  parts.post_processor = simple_post_processor(settings, parts);
}

void read_word_piece_files(const TokenizerFiles& files, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  parts.vocabulary = read_vocabulary_lines(files.at("vocab.txt"), "vocab.txt");
  const auto id_of = [&](const char* text) {
    const TokenId id = parts.vocabulary.id_of(text);
    if (id == kNoToken) throw CheckpointError(fmt::format("vocab.txt: no token '{}'", text));
    return id;
  };
  const bool lowercase = setting(settings, "do_lower_case", true);
  parts.normalizer = make_bert_normalizer(lowercase, setting(settings, "tokenize_chinese_chars", true),
                                          setting(settings, "strip_accents", lowercase));
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.model = make_word_piece_model(parts.vocabulary, {.unknown = id_of("[UNK]")});
  parts.decoder = make_word_piece_decoder("##", /*cleanup=*/true);
  std::vector<AddedToken> added = AddedTokenCollector(settings, parts.vocabulary).all();
  for (const char* text : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const bool known = std::any_of(added.begin(), added.end(), [&](const AddedToken& t) { return t.content == text; });
    const TokenId id = parts.vocabulary.id_of(text);
    if (!known && id != kNoToken) added.push_back({.id = id, .content = text, .special = true});
  }
  take_added_tokens(std::move(added), parts);
  parts.post_processor = make_bert_post_processor(id_of("[CLS]"), id_of("[SEP]"));
}

}  // namespace computron
