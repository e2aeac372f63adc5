#include "src/requests/guide_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "computron/base/json.h"
#include "computron/base/json_text.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;
using Kind = JsonValue::Kind;

// A guide and the field that it stands in.
struct AskedGuide {
  std::string path;
  std::string guide;
};

Json parsed(const JsonValue& value, const std::string& path) {
  try {
    check_keys(value.json);
  } catch (const RequestError& error) {
    invalid_parameter(fmt::format("{}: {}", path, error.what()));
  }
  Json json;
  if (parse_json(value.json, {}, json)) invalid_parameter(fmt::format("{}: must be JSON", path));
  return json;
}

// A schema, or a text that holds one.
std::string schema_in(const Json& schema, const std::string& path) {
  if (schema.is_string()) return schema_guide(schema.get_ref<const std::string&>());
  if (schema.is_object()) return schema_guide(schema.dump());
  invalid_parameter(fmt::format("{}: must be a JSON schema, an object (got {})", path, cut(schema.dump())));
}

const std::string& text_in(const Json& object, const char* key, const std::string& path) {
  if (object.contains(key) && object[key].is_string()) return object[key].get_ref<const std::string&>();
  invalid_parameter(fmt::format("{}.{}: must be a text", path, key));
}

std::optional<AskedGuide> of_response_format(const JsonValue& value) {
  const std::string path = "body.response_format";
  if (value.kind != Kind::kObject) {
    invalid_parameter(fmt::format("{}: must be an object (got {})", path, describe(value)));
  }
  const Json format = parsed(value, path);
  const std::string& type = text_in(format, "type", path);
  if (type == "text") return std::nullopt;
  if (type == "json_object") return AskedGuide{path, object_guide()};
  if (type != "json_schema") {
    invalid_parameter(
        fmt::format("{}.type: 'text', 'json_object' and 'json_schema' are served (got {})", path, shown(type)));
  }
  if (!format.contains("json_schema") || !format["json_schema"].is_object() ||
      !format["json_schema"].contains("schema")) {
    invalid_parameter(fmt::format("{}.json_schema.schema: missing", path));
  }
  const std::string place = path + ".json_schema.schema";
  return AskedGuide{place, schema_in(format["json_schema"]["schema"], place)};
}

// The object of vLLM's newer interface holds one of the older fields.
std::optional<AskedGuide> of_structured_outputs(const JsonValue& value) {
  const std::string path = "body.structured_outputs";
  if (value.kind != Kind::kObject) {
    invalid_parameter(fmt::format("{}: must be an object (got {})", path, describe(value)));
  }
  const Json outputs = parsed(value, path);
  std::optional<AskedGuide> asked;
  for (const auto& [name, what] : outputs.items()) {
    if (what.is_null() || what == false) continue;
    const std::string place = fmt::format("{}.{}", path, cut(name));
    if (asked) invalid_parameter(fmt::format("{}: not beside {}", place, asked->path));
    if (name == "json") {
      asked = {place, schema_in(what, place)};
    } else if (name == "regex") {
      asked = {place, regex_guide(text_in(outputs, "regex", path))};
    } else if (name == "choice") {
      asked = {place, choice_guide(what.dump())};
    } else if (name == "json_object" && what == true) {
      asked = {place, object_guide()};
    } else {
      invalid_parameter(fmt::format("{}: not served; 'json', 'regex', 'choice' and 'json_object' are", place));
    }
  }
  return asked;
}

std::optional<AskedGuide> of_field(std::string_view name, const JsonValue& value) {
  if (name == "response_format") return of_response_format(value);
  if (name == "structured_outputs") return of_structured_outputs(value);
  const std::string path = fmt::format("body.{}", name);
  if (name == "guided_regex") {
    if (value.kind == Kind::kString) return AskedGuide{path, regex_guide(value.text)};
    invalid_parameter(fmt::format("{}: must be a text (got {})", path, describe(value)));
  }
  if (name == "guided_choice") {
    if (value.kind == Kind::kList) return AskedGuide{path, choice_guide(value.json)};
    invalid_parameter(fmt::format("{}: must be a list of texts (got {})", path, describe(value)));
  }
  if (value.kind == Kind::kString) return AskedGuide{path, schema_guide(value.text)};
  if (value.kind == Kind::kObject) return AskedGuide{path, schema_guide(value.json)};
  invalid_parameter(fmt::format("{}: must be a JSON schema, an object (got {})", path, describe(value)));
}

}  // namespace

RequestedGuide guide_of(const JsonFields& body, GuideChecker& guides, std::string_view refusal) {
  std::optional<AskedGuide> asked;
  for (const std::string_view name : kGuideFields) {
    const JsonValue& value = field(body, name);
    if (value.kind == Kind::kNull) continue;
    auto other = of_field(name, value);
    if (asked && other) invalid_parameter(fmt::format("{}: not beside {}", other->path, asked->path));
    if (other) asked = std::move(other);
  }
  if (!asked) return {};
  if (!refusal.empty()) invalid_parameter(fmt::format("{}: {}", asked->path, refusal));
  try {
    return {asked->path, guides.checked(std::move(asked->guide))};
  } catch (const RequestError& error) {
    invalid_parameter(fmt::format("{}: {}", asked->path, error.what()));
  }
}

void check_guided(const Request& request, const ServedModel& model, const RequestedGuide& guide, GuideChecker& guides) {
  if (!model.tokenizer) refuse_text("body: a guided answer", model);
  if (request.ignore_eos)
    invalid_parameter("body.ignore_eos: not beside a guided answer, which ends where it is whole");
  if (request.sampling.min_tokens > 0) {
    invalid_parameter("body.min_tokens: not beside a guided answer, which ends where it is whole");
  }
  if (model.config.eos_tokens.empty() && request.stop_tokens.empty()) {
    invalid_parameter(
        fmt::format("body.stop_token_ids: {} has no token that ends an answer; a guided answer needs one", model.id));
  }
  const Tokenizer& tokenizer = *model.tokenizer;
  const GuideVocabulary vocabulary{.model = &model,
                                   .tokens = std::min(model.config.vocab, tokenizer.tokens_end()),
                                   .text = [&tokenizer](TokenId token) {
                                     return tokenizer.is_special(token) ? std::string() : tokenizer.token_bytes(token);
                                   }};
  std::vector<TokenId> ends = model.config.eos_tokens;
  ends.insert(ends.end(), request.stop_tokens.begin(), request.stop_tokens.end());
  if (!guides.can_begin(vocabulary, ends)) {
    invalid_parameter(fmt::format("{}: no token of {} begins an answer like that", guide.path, model.id));
  }
}

void refuse_guides(const JsonFields& body, const ServedModel& model) {
  for (const std::string_view name : kGuideFields) {
    if (field(body, name).kind == Kind::kNull) continue;
    invalid_parameter(fmt::format("body.{}: {} is an encoder, which generates nothing to guide", name, model.id));
  }
}

}  // namespace computron
