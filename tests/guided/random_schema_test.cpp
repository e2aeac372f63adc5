// Ten thousand answers to random schemas, drawn token by token from masks, are valid: by a validator of this test's
// own, which knows nothing of grammars.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "computron/base/utf8.h"
#include "computron/guided/guide.h"
#include "tests/guided/accepted.h"

namespace computron::test {
namespace {

using Json = nlohmann::ordered_json;
using Random = std::mt19937_64;

// ---- the validator

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
  if (type == "string") return value.is_string();
  return type == "array" ? value.is_array() : value.is_object();
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& value, const Json& schema) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      const auto pointer = schema["$ref"].get<std::string>().substr(1);
      if (!valid(value, root_.at(Json::json_pointer(pointer)))) return false;
    }
    if (schema.contains("type") && !type_valid(value, schema["type"])) return false;
    if (schema.contains("const") && !(value == schema["const"])) return false;
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
      return false;
    }
    const auto holds = [&](const Json& other) { return valid(value, other); };
    const auto all = [](const Json& of, const char* key) { return of.contains(key) ? of[key] : Json::array(); };
    const Json any_of = all(schema, "anyOf"), one_of = all(schema, "oneOf"), all_of = all(schema, "allOf");
    if (!any_of.empty() && std::none_of(any_of.begin(), any_of.end(), holds)) return false;
    if (!one_of.empty() && std::count_if(one_of.begin(), one_of.end(), holds) != 1) return false;
    if (!std::all_of(all_of.begin(), all_of.end(), holds)) return false;
    if (value.is_string()) return string_valid(value, schema);
    if (value.is_number()) return number_valid(value, schema);
    if (value.is_array()) return array_valid(value, schema);
    return !value.is_object() || object_valid(value, schema);
  }

 private:
  static bool type_valid(const Json& value, const Json& type) {
    if (type.is_string()) return is_of_type(value, type.get<std::string>());
    return std::any_of(type.begin(), type.end(),
                       [&](const Json& t) { return is_of_type(value, t.get<std::string>()); });
  }

  static bool string_valid(const Json& value, const Json& schema) {
    const auto text = value.get<std::string>();
    const std::size_t length = count_characters(text);
    if (schema.contains("minLength") && length < schema["minLength"].get<std::size_t>()) return false;
    if (schema.contains("maxLength") && length > schema["maxLength"].get<std::size_t>()) return false;
    if (!schema.contains("pattern")) return true;
    return std::regex_search(wide(text), std::wregex(wide(schema["pattern"].get<std::string>())));
  }

  // A character each.
  static std::wstring wide(const std::string& text) {
    std::wstring characters;
    for (std::size_t at = 0; at < text.size();) characters += static_cast<wchar_t>(next_character(text, at));
    return characters;
  }

  static bool number_valid(const Json& value, const Json& schema) {
    const auto number = value.get<double>();
    const auto bound = [&schema](const char* key, double absent) {
      return schema.contains(key) ? schema[key].get<double>() : absent;
    };
    return number >= bound("minimum", -INFINITY) && number <= bound("maximum", INFINITY) &&
           number > bound("exclusiveMinimum", -INFINITY) && number < bound("exclusiveMaximum", INFINITY);
  }

  bool array_valid(const Json& value, const Json& schema) const {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<std::size_t>()) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<std::size_t>()) return false;
    const Json prefix = schema.contains("prefixItems") ? schema["prefixItems"] : Json::array();
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size() ? !valid(value[i], prefix[i])
                            : schema.contains("items") && !valid(value[i], schema["items"])) {
        return false;
      }
    }
    return true;
  }

  bool object_valid(const Json& value, const Json& schema) const {
    const Json properties = schema.contains("properties") ? schema["properties"] : Json::object();
    for (const auto& [name, item] : value.items()) {
      if (properties.contains(name)) {
        if (!valid(item, properties[name])) return false;
      } else if (schema.contains("additionalProperties") && !valid(item, schema["additionalProperties"])) {
        return false;
      }
    }
    const Json required = schema.contains("required") ? schema["required"] : Json::array();
    return std::all_of(required.begin(), required.end(),
                       [&value](const Json& name) { return value.contains(name.get<std::string>()); });
  }

  const Json& root_;
};

// ---- random schemas

class SchemaMaker {
 public:
  explicit SchemaMaker(Random& random) : random_(random) {}

  Json make() {
    Json schema = value(3);
    if (!schema.is_object()) return schema;
    Json node = object(1);
    node["properties"]["more"] = {{"anyOf", {{{"type", "null"}}, {{"$ref", "#/$defs/node"}}}}};
    schema["$defs"] = {{"node", node}, {"leaf", value(0)}};
    return schema;
  }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

  Json value(int depth) {
    switch (below(depth > 0 ? 12 : 6)) {
      case 0:
        return number("integer");
      case 1:
        return number("number");
      case 2:
        return string();
      case 3:
        return {{"type", one_in(2) ? "boolean" : "null"}};
      case 4:
        return {{"enum", {"red", "gr\"een", 3, 2.5, nullptr, {{"k", {1, 2}}}}}};
      case 5:
        return one_in(2) ? Json{{"const", "ü\n"}} : Json{{"type", {"string", "null"}}, {"maxLength", 2}};
      case 6:
        return one_in(2) ? Json{{"$ref", "#/$defs/node"}} : Json{{"$ref", "#/$defs/leaf"}};
      case 7:
        return array(depth);
      case 8:
        return {{"anyOf", {value(depth - 1), value(depth - 1)}}};
      case 9:
        return one_in(2) ? Json{{"oneOf", {{{"type", "string"}, {"maxLength", 3}}, number("integer"), array(depth)}}}
                         : Json{{"allOf", {number("number"), {{"maximum", 50}}}}};
      default:
        return object(depth);
    }
  }

  Json number(const char* type) {
    Json schema = {{"type", type}};
    const auto bound = [this] { return (static_cast<double>(below(4001)) - 2000) / (one_in(2) ? 1 : 8); };
    const double low = bound();
    if (one_in(2)) schema[one_in(3) ? "exclusiveMinimum" : "minimum"] = low;
    if (one_in(2)) schema[one_in(3) ? "exclusiveMaximum" : "maximum"] = low + 1 + static_cast<double>(below(300));
    return schema;
  }

  Json string() {
    const char* const patterns[] = {"^[a-z]{1,3}$", "x+y?", "^a|b$", "^\\d{2}-\\w+", "[^a]\"", "^.{2,4}$"};
    if (one_in(3)) return {{"type", "string"}, {"pattern", patterns[below(std::size(patterns))]}};
    Json schema = {{"type", "string"}};
    const std::size_t least = below(4);
    if (one_in(2)) schema["minLength"] = least;
    if (one_in(2)) schema["maxLength"] = least + below(80);
    return schema;
  }

  Json array(int depth) {
    Json schema = {{"type", "array"}};
    const std::size_t least = below(3);
    if (one_in(2)) schema["minItems"] = least;
    if (one_in(2)) schema["maxItems"] = least + below(3);
    if (!one_in(4)) schema["items"] = value(depth - 1);
    if (one_in(3)) schema["prefixItems"] = {value(depth - 1), value(depth - 1)};
    return schema;
  }

  Json object(int depth) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    const char* const names[] = {"a", "ab", "b c", "ä", "id\"", "x"};
    for (const char* name : names) {
      if (!one_in(2)) continue;
      schema["properties"][name] = value(depth - 1);
      if (one_in(2)) schema["required"].push_back(name);
    }
    if (one_in(3)) schema["additionalProperties"] = one_in(2) ? Json(false) : value(0);
    return schema;
  }

  Random& random_;
};

// ---- answers

// All bytes, so that anything can be spelt, and pieces of several.
std::vector<std::string> vocabulary() {
  std::vector<std::string> texts = {""};  // the end
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* piece :
       {"\":", "\", \"", "\"}", "{\"", ", ",   "abc",     "12",      "xy",  "ü",     "null",  "true",
        "\"a", "a\"",    "]}",  "}}",  "\n  ", "\\u00e9", "more\":", "0.5", "red\"", "日本語"}) {
    texts.emplace_back(piece);
  }
  return texts;
}

constexpr TokenId kEndToken = 0;

// Draws tokens that are allowed until the end; those that close something are preferred. Empty: not within 3,000.
std::string draw(const std::shared_ptr<Guide>& guide, const std::vector<std::string>& texts, Random& random) {
  GuidedText state;
  std::string answer;
  TokenMask mask;
  for (int i = 0; i < 3000; ++i) {
    state.allow(*guide, std::vector<TokenId>{kEndToken}, mask);
    std::vector<TokenId> allowed, closing;
    for (std::size_t t = 0; t < texts.size(); ++t) {
      if ((mask[t / 32] >> (t % 32) & 1) == 0) continue;
      allowed.push_back(static_cast<TokenId>(t));
      if (t == kEndToken || texts[t].find_first_of("\"}]") != std::string::npos || texts[t] == "null")
        closing.push_back(allowed.back());
    }
    if (allowed.empty()) return {};
    const auto& from = !closing.empty() && random() % 4 != 0 ? closing : allowed;
    const TokenId token = from[random() % from.size()];
    if (token == kEndToken) return answer;
    state.append(token);
    answer += texts[static_cast<std::size_t>(token)];
  }
  return {};
}

TEST(RandomSchemas, AnswersThatEndAreValid) {
  constexpr int kSchemas = 2600, kAnswers = 4;
  Random random(17);
  const auto texts = vocabulary();
  const auto trie = std::make_shared<const TokenTrie>(texts, texts.size());
  int refused = 0, unfinished = 0, ended = 0;
  for (int i = 0; i < kSchemas; ++i) {
    const Json schema = SchemaMaker(random).make();
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = compile_guide(schema_guide(schema.dump()));
    } catch (const RequestError&) {
      ++refused;
      continue;
    }
    const auto guide = std::make_shared<Guide>(trie, grammar);
    for (int k = 0; k < kAnswers; ++k) {
      const std::string answer = draw(guide, texts, random);
      if (answer.empty()) {
        ++unfinished;
        continue;
      }
      const Json value = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << schema << "\n" << answer;
      ASSERT_TRUE(Validator(schema).valid(value, schema)) << schema << "\n" << answer;
      ++ended;
    }
  }
  EXPECT_LT(refused, kSchemas / 20) << "alternatives of 'oneOf' that are not plainly apart, bounds without a number";
  EXPECT_LT(unfinished, ended / 50);
  EXPECT_GE(ended, 10'000);
}

}  // namespace
}  // namespace computron::test
