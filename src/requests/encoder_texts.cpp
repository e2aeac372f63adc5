#include "src/requests/encoder_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "computron/base/json_text.h"
#include "src/requests/text_request.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;
using Prompts = std::map<std::string, std::string>;

// What checkpoints call the prompts of queries and of documents, in the order in which they are looked for.
constexpr std::string_view kQueryNames[] = {"query", "search_query"};
constexpr std::string_view kDocumentNames[] = {"document", "passage", "corpus", "search_document"};

const std::string kNoPrompt;

// Null where there is none.
const std::string* find_prompt(const Prompts& prompts, std::string_view name) {
  const auto found = prompts.find(std::string(name));
  return found == prompts.end() ? nullptr : &found->second;
}

// By the name itself, or by one that means the same.
const std::string* find_kind(const Prompts& prompts, std::string_view name) {
  if (const std::string* exact = find_prompt(prompts, name)) return exact;
  for (const std::span<const std::string_view> names :
       {std::span<const std::string_view>(kQueryNames), std::span<const std::string_view>(kDocumentNames)}) {
    if (std::ranges::find(names, name) == names.end()) continue;
    for (const std::string_view other : names) {
      if (const std::string* same = find_prompt(prompts, other)) return same;
    }
  }
  return nullptr;
}

// "it has document, query"
std::string names_of(const Prompts& prompts) {
  if (prompts.empty()) return "its checkpoint has none";
  std::string text;
  for (const auto& [name, prompt] : prompts) text += (text.empty() ? "it has " : ", ") + name;
  return cut(text);
}

const std::string& default_prompt(const ModelConfig& config) {
  const std::string* prompt = find_prompt(config.prompts, config.default_prompt);
  return prompt == nullptr ? kNoPrompt : *prompt;
}

}  // namespace

EncoderTexts::EncoderTexts(const JsonFields& body, const ServedModel& model, std::optional<Encoder>& encoder)
    : body_(body), model_(model), encoder_(encoder) {
  options_.lower_case = model.config.lower_case;
  if (model.config.max_input_tokens > 0) options_.most = static_cast<std::size_t>(model.config.max_input_tokens);
  read_length();
}

void EncoderTexts::read_length() {
  const int most = model_.config.longest_input();
  const std::int64_t tokens = OptionalFields(body_).integer("truncate_prompt_tokens", -1, most, /*fallback=*/0);
  const JsonValue& side = field(body_, "truncation_side");
  if (side.kind != Kind::kNull && (side.kind != Kind::kString || (side.text != "left" && side.text != "right"))) {
    invalid_parameter(fmt::format("body.truncation_side: must be 'left' or 'right' (got {})", describe(side)));
  }
  options_.keep_end = side.text == "left";
  if (field(body_, "truncate_prompt_tokens").kind == Kind::kNull) return;
  if (tokens == 0) {
    invalid_parameter(
        fmt::format("body.truncate_prompt_tokens: must be an integer from 1 to {}, or -1 for {} (got 0)", most, most));
  }
  options_.most = static_cast<std::size_t>(tokens < 0 ? most : tokens);
  cuts_tokens_ = true;
}

const std::string& EncoderTexts::asked_prompt() const {
  const JsonValue &kind = field(body_, "input_type"), &name = field(body_, "prompt_name");
  if (kind.kind != Kind::kNull && name.kind != Kind::kNull) {
    invalid_request("body.prompt_name: goes without body.input_type, which names a prompt, too");
  }
  if (kind.kind != Kind::kNull) return prompt_named("input_type", required_string(body_, "body.", "input_type"), true);
  if (name.kind != Kind::kNull) {
    return prompt_named("prompt_name", required_string(body_, "body.", "prompt_name"), false);
  }
  return default_prompt(model_.config);
}

const std::string& EncoderTexts::prompt_named(std::string_view field, std::string_view name, bool kinds) const {
  const Prompts& prompts = model_.config.prompts;
  const std::string* prompt = kinds ? find_kind(prompts, name) : find_prompt(prompts, name);
  if (prompt != nullptr) return *prompt;
  invalid_parameter(fmt::format("body.{}: {} has no prompt {}; {}", field, model_.id, shown(name), names_of(prompts)));
}

const std::string& EncoderTexts::prompt_of(std::string_view kind) const {
  const std::string* prompt = find_kind(model_.config.prompts, kind);
  return prompt == nullptr ? default_prompt(model_.config) : *prompt;
}

// What `encode` gives of the encoder, its errors with the path before them.
template <class F>
auto EncoderTexts::encoded(const std::string& path, F&& encode) const {
  if (!encoder_) refuse_text(path, model_);
  try {
    return encode(*encoder_);
  } catch (const RequestError& error) {
    throw RequestError(error.status(), error.error_code(), fmt::format("{}: {}", path, error.what()));
  }
}

Request EncoderTexts::text(const std::string& prompt, std::string_view text, const std::string& path) const {
  std::vector<TokenId> tokens = encoded(path, [&](Encoder& encoder) {
    return prompt.empty() ? encoder.encode(text, options_) : encoder.encode(prompt + std::string(text), options_);
  });
  if (tokens.empty()) invalid_parameter(fmt::format("{}: the text has no tokens", path));
  check_vocabulary(tokens, path, model_);
  return request_of(std::move(tokens), path);
}

std::vector<TokenId> EncoderTexts::plain(std::string_view text, const std::string& path) const {
  const EncodeOptions options{.special_tokens = false, .lower_case = options_.lower_case};
  return encoded(path, [&](Encoder& encoder) { return encoder.encode(text, options); });
}

Request EncoderTexts::pair(std::string_view first, std::string_view second, const std::string& path) const {
  return pair(plain(first, path), second, path);
}

Request EncoderTexts::pair(std::span<const TokenId> first, std::string_view second, const std::string& path) const {
  const std::vector<TokenId> own = plain(second, path);
  EncodedPair pair = encoded(path, [&](Encoder& encoder) { return encoder.encode_pair(first, own, options_); });
  if (pair.tokens.empty()) invalid_parameter(fmt::format("{}: the texts have no tokens", path));
  check_vocabulary(pair.tokens, path, model_);
  Request request = request_of(std::move(pair.tokens), path);
  const auto last = std::ranges::max_element(pair.token_type_ids);
  if (last != pair.token_type_ids.end() && *last > 0 && *last < model_.config.token_types) {
    request.token_type_ids = std::move(pair.token_type_ids);
  }
  return request;
}

EncoderTexts::Part EncoderTexts::part_of(std::size_t tokens) const {
  if (!cuts_tokens_ || tokens <= options_.most) return {.begin = 0, .count = tokens};
  return {.begin = options_.keep_end ? tokens - options_.most : 0, .count = options_.most};
}

// As many integers as a model has positions are kept of a list at each end.
Request EncoderTexts::tokens(const JsonValue& list, const std::string& path) const {
  const Part part = part_of(list.count);
  check_length(part.count, path);
  std::vector<TokenId> tokens;
  tokens.reserve(part.count);
  for (std::size_t i = part.begin; i < part.begin + part.count; ++i) {
    tokens.push_back(token_at(list, i, path, model_));
  }
  return request_of(std::move(tokens), path);
}

std::vector<std::int32_t> EncoderTexts::segments(const JsonValue& list, const std::string& path) const {
  const Part part = part_of(list.count);
  std::vector<std::int32_t> segments;
  segments.reserve(part.count);
  for (std::size_t i = part.begin; i < part.begin + part.count; ++i) {
    const std::int64_t segment = list.integer_at(i);
    if (segment < 0 || segment >= model_.config.token_types) {
      invalid_parameter(fmt::format("{}[{}]: segments of {} are integers from 0 to {} (got {})", path, i, model_.id,
                                    model_.config.token_types - 1, segment));
    }
    segments.push_back(static_cast<std::int32_t>(segment));
  }
  return segments;
}

void EncoderTexts::check_length(std::size_t tokens, const std::string& path) const {
  if (std::cmp_less_equal(tokens, model_.config.max_positions)) return;
  context_length_exceeded(
      fmt::format("{}: {} tokens exceed the {} positions of {}", path, tokens, model_.config.max_positions, model_.id));
}

// RoBERTa's positions are counted behind the padding token's, and only over other tokens: transformers gives padding
// in a text no position of its own.
void EncoderTexts::refuse_padding(const std::vector<TokenId>& tokens, const std::string& path) const {
  const ModelConfig& config = model_.config;
  if (config.causal || config.position_offset == 0) return;
  const TokenId padding = config.position_offset - 1;
  if (std::ranges::find(tokens, padding) == tokens.end()) return;
  invalid_parameter(fmt::format("{}: token {} is padding, of which {} takes none", path, padding, model_.id));
}

Request EncoderTexts::request_of(std::vector<TokenId> tokens, const std::string& path) const {
  refuse_padding(tokens, path);
  check_length(tokens.size(), path);
  Request request;
  request.prompt = std::move(tokens);
  return request;
}

}  // namespace computron
