#include "src/text/post_processor.h"

#include <fmt/format.h>

#include "computron/base/printable.h"
#include "src/text/vocabulary.h"

namespace computron {
namespace {

constexpr std::size_t kMaxParts = 64;

TokenId read_id(const JsonAt& json) { return static_cast<TokenId>(json.integer(0, kMaxTokenId)); }

TemplatePart tokens_part(std::vector<TokenId> tokens, std::int32_t type) {
  return {TemplatePart::kTokens, std::move(tokens), type};
}

TemplatePart read_special(const JsonAt& part, const JsonAt& special_tokens) {
  const std::string name = part["id"].string();
  const JsonAt token = special_tokens[name.c_str()];
  if (token.is_null()) part["id"].fail(fmt::format("'{}' is not among special_tokens", printable(name)));
  TemplatePart result = tokens_part({}, static_cast<std::int32_t>(part["type_id"].integer(0, 1 << 20)));
  const JsonAt ids = token["ids"];
  if (ids.list_size() > kMaxParts) ids.fail(fmt::format("more than {} tokens", kMaxParts));
  for (std::size_t i = 0; i < ids.list_size(); ++i) result.tokens.push_back(read_id(ids.item(i)));
  return result;
}

TemplatePart read_sequence(const JsonAt& part) {
  const std::string name = part["id"].string();
  if (name != "A" && name != "B") part["id"].fail("must be A or B");
  return {.kind = name == "A" ? TemplatePart::kFirst : TemplatePart::kSecond,
          .type = static_cast<std::int32_t>(part["type_id"].integer(0, 1 << 20))};
}

std::vector<TemplatePart> read_template(const JsonAt& list, const JsonAt& special_tokens) {
  std::vector<TemplatePart> parts;
  if (list.list_size() > kMaxParts) list.fail(fmt::format("more than {} parts", kMaxParts));
  for (std::size_t i = 0; i < list.list_size(); ++i) {
    const JsonAt part = list.item(i);
    const JsonAt special = part["SpecialToken"];
    parts.push_back(special.is_null() ? read_sequence(part["Sequence"]) : read_special(special, special_tokens));
  }
  return parts;
}

// A pair of a text and a number.
TokenId read_pair(const JsonAt& json) {
  if (json.list_size() != 2) json.fail("must be a token and its number");
  return read_id(json.item(1));
}

std::optional<PostProcessor> read_sequence_of_processors(const JsonAt& list) {
  std::optional<PostProcessor> result;
  for (std::size_t i = 0; i < list.list_size(); ++i) {
    auto next = read_post_processor(list.item(i));
    if (!next) continue;
    if (result) list.item(i).fail("a second one that adds tokens is not supported");
    result = std::move(next);
  }
  return result;
}

}  // namespace

PostProcessor make_bert_post_processor(TokenId begin, TokenId end) {
  PostProcessor bert;
  bert.single = {tokens_part({begin}, 0), {}, tokens_part({end}, 0)};
  bert.pair = {tokens_part({begin}, 0),
               {},
               tokens_part({end}, 0),
               {.kind = TemplatePart::kSecond, .type = 1},
               tokens_part({end}, 1)};
  return bert;
}

PostProcessor make_roberta_post_processor(TokenId begin, TokenId end) {
  PostProcessor roberta;
  roberta.single = {tokens_part({begin}, 0), {}, tokens_part({end}, 0)};
  roberta.pair = {
      tokens_part({begin}, 0), {}, tokens_part({end, end}, 0), {TemplatePart::kSecond}, tokens_part({end}, 0)};
  return roberta;
}

PostProcessor make_simple_post_processor(std::optional<TokenId> begin, std::optional<TokenId> end) {
  PostProcessor simple{.single = {}, .pair = {}};
  const auto add = [&](std::vector<TemplatePart>& parts, TemplatePart::Kind kind, std::int32_t type) {
    if (begin) parts.push_back(tokens_part({*begin}, type));
    parts.push_back({.kind = kind, .type = type});
    if (end) parts.push_back(tokens_part({*end}, type));
  };
  add(simple.single, TemplatePart::kFirst, 0);
  add(simple.pair, TemplatePart::kFirst, 0);
  add(simple.pair, TemplatePart::kSecond, 1);
  return simple;
}

std::optional<PostProcessor> read_post_processor(const JsonAt& json) {
  if (json.is_null()) return std::nullopt;
  const std::string type = json["type"].string();
  if (type == "ByteLevel") return std::nullopt;  // it moves offsets only
  if (type == "Sequence") return read_sequence_of_processors(json["processors"]);
  if (type == "BertProcessing") return make_bert_post_processor(read_pair(json["cls"]), read_pair(json["sep"]));
  if (type == "RobertaProcessing") return make_roberta_post_processor(read_pair(json["cls"]), read_pair(json["sep"]));
  if (type == "TemplateProcessing") {
    const JsonAt tokens = json["special_tokens"];
    return PostProcessor{read_template(json["single"], tokens), read_template(json["pair"], tokens)};
  }
  json["type"].fail(fmt::format("the post-processor '{}' is not supported", printable(type)));
}

}  // namespace computron
