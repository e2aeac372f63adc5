// Vocabularies without a tokenizer.json: the two files of GPT-2, OPT, RoBERTa and Qwen2, BERT's one.

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/tokenizer_class.h"
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
  // RoBERTa's <mask> takes the space before it along unless the files say otherwise.
  AddedTokenCollector(const TokenizerSettings& settings, const Vocabulary& vocabulary, bool mask_takes_space)
      : settings_(settings), vocabulary_(vocabulary), mask_takes_space_(mask_takes_space) {}

  std::vector<AddedToken> all() {
    take_decoder();
    take_added();
    for (const char* role :
         {"unk_token", "bos_token", "eos_token", "sep_token", "cls_token", "pad_token", "mask_token"}) {
      const std::string text = settings_.role(role);
      const bool takes_space = mask_takes_space_ && std::string_view(role) == "mask_token" && mask_has_lstrip();
      take({.id = vocabulary_.id_of(text), .content = text, .lstrip = takes_space, .special = true});
    }
    return std::move(tokens_);
  }

 private:
  // Nothing but its text is known, or what is known says that it takes the space before it along.
  bool mask_has_lstrip() const {
    const Json* mask = settings_.entry("mask_token");
    return mask == nullptr || !mask->is_object() || mask->value("lstrip", Json()) == Json(true);
  }

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
  bool mask_takes_space_;
  std::vector<AddedToken> tokens_;
};

std::string named_class(const Json& config) {
  return config.is_null() ? "" : JsonAt(config, "tokenizer_config.json: ")["tokenizer_class"].string_or("");
}

// Of `known`, which read such files; without a name the first of them.
std::string_view class_among(const TokenizerSettings& settings, std::initializer_list<std::string_view> known,
                             const char* file) {
  if (settings.class_name.empty()) return *known.begin();
  const std::string_view name = tokenizer_class(settings.class_name).name;
  if (!name.empty() && std::ranges::find(known, name) != known.end()) return name;
  throw CheckpointError(
      fmt::format("{} is a {}'s, which is not supported without tokenizer.json: save the tokenizer with "
                  "transformers, which writes it",
                  file, printable(settings.class_name)));
}

TokenId id_of(const Vocabulary& vocabulary, const std::string& text, const char* file) {
  const TokenId id = vocabulary.id_of(text);
  if (id == kNoToken) throw CheckpointError(fmt::format("{}: no token '{}'", file, printable(text)));
  return id;
}

}  // namespace

TokenizerSettings::TokenizerSettings(const TokenizerFiles& files, std::string_view model_type)
    : config(parse_file(files, "tokenizer_config.json")),
      roles(parse_file(files, "special_tokens_map.json")),
      added(parse_file(files, "added_tokens.json")),
      chat_template(file(files, "chat_template.jinja")),
      class_name(named_class(config)) {
  if (chat_template.empty()) chat_template = template_of(config);
  if (!class_name.empty() || model_type.empty() || files.contains("tokenizer.json")) return;
  class_name = class_of_model(model_type);
  if (class_name.empty()) class_name = model_type;
}

const Json* TokenizerSettings::entry(const char* name) const {
  for (const Json* json : {&config, &roles}) {
    if (json->is_object() && json->contains(name) && !token_text((*json)[name]).empty()) return &(*json)[name];
  }
  return nullptr;
}

std::string TokenizerSettings::role(const char* name) const {
  if (const Json* named = entry(name)) return token_text(*named);
  const bool has_none = config.is_object() && config.contains(name);
  for (const TokenRole& role : tokenizer_class(class_name).roles) {
    if (!has_none && role.role == name) return std::string(role.text);
  }
  return "";
}

std::optional<bool> TokenizerSettings::flag(const char* name) const {
  if (config.is_null()) return std::nullopt;
  const JsonAt value = JsonAt(config, "tokenizer_config.json: ")[name];
  return value.is_null() ? std::nullopt : std::optional(value.boolean());
}

void read_bpe_files(const TokenizerFiles& files, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  const std::string_view type =
      class_among(settings, {"GPT2Tokenizer", "RobertaTokenizer", "Qwen2Tokenizer"}, "vocab.json");
  const bool roberta = type == "RobertaTokenizer", qwen2 = type == "Qwen2Tokenizer";
  const Json document = parse_json(files.at("vocab.json"), "vocab.json");
  parts.vocabulary = read_vocabulary(JsonAt(document, "vocab.json"));
  const bool prefix = settings.flag("add_prefix_space").value_or(false);
  if (qwen2) parts.normalizer = make_nfc_normalizer();
  parts.pre_tokenizer = qwen2 ? make_qwen2_pre_tokenizer(prefix) : make_byte_level_pre_tokenizer(prefix);
  parts.model =
      make_bpe_model(parts.vocabulary, read_merge_lines(files.at("merges.txt"), "merges.txt"), {.spells_bytes = true});
  parts.decoder = make_byte_level_decoder();
  take_added_tokens(AddedTokenCollector(settings, parts.vocabulary, /*mask_takes_space=*/roberta).all(), parts);
  parts.post_processor =
      roberta ? make_roberta_post_processor(id_of(parts.vocabulary, settings.role("cls_token"), "vocab.json"),
                                            id_of(parts.vocabulary, settings.role("sep_token"), "vocab.json"))
              : simple_post_processor(settings, parts);
}

void read_word_piece_files(const TokenizerFiles& files, const TokenizerSettings& settings, Tokenizer::Parts& parts) {
  class_among(settings, {"BertTokenizer", "DistilBertTokenizer"}, "vocab.txt");
  parts.vocabulary = read_vocabulary_lines(files.at("vocab.txt"), "vocab.txt");
  const TokenId unknown = id_of(parts.vocabulary, "[UNK]", "vocab.txt"),
                begin = id_of(parts.vocabulary, "[CLS]", "vocab.txt"),
                end = id_of(parts.vocabulary, "[SEP]", "vocab.txt");
  const bool lowercase = settings.flag("do_lower_case").value_or(true);
  parts.normalizer = make_bert_normalizer(lowercase, settings.flag("tokenize_chinese_chars").value_or(true),
                                          settings.flag("strip_accents").value_or(lowercase));
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.model = make_word_piece_model(parts.vocabulary, {.unknown = unknown});
  parts.decoder = make_word_piece_decoder("##", /*cleanup=*/true);
  std::vector<AddedToken> added = AddedTokenCollector(settings, parts.vocabulary, /*mask_takes_space=*/false).all();
  for (const char* text : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const bool known = std::any_of(added.begin(), added.end(), [&](const AddedToken& t) { return t.content == text; });
    const TokenId id = parts.vocabulary.id_of(text);
    if (!known && id != kNoToken) added.push_back({.id = id, .content = text, .special = true});
  }
  take_added_tokens(std::move(added), parts);
  parts.post_processor = make_bert_post_processor(begin, end);
}

}  // namespace computron
