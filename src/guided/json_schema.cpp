#include "src/guided/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "computron/base/json_text.h"
#include "src/guided/char_set.h"
#include "src/guided/number_range.h"
#include "src/guided/regex.h"
#include "src/guided/schema_merge.h"

namespace computron {
namespace {

using Json = SchemaJson;

constexpr std::size_t kMaxProperties = 4096;
constexpr int kMaxInline = 128;  // schemas in one another, but for references
constexpr int kSpaces = 40, kTabs = 10;

struct Keyword {
  std::string_view name;
  SchemaTypes types;  // that it limits; 0: any, or none
};
constexpr std::array kKeywords = {
    Keyword{"$ref", 0},
    Keyword{"additionalProperties", kObjectType},
    Keyword{"allOf", 0},
    Keyword{"anyOf", 0},
    Keyword{"const", 0},
    Keyword{"enum", 0},
    Keyword{"exclusiveMaximum", kIntegerType | kFractionType},
    Keyword{"exclusiveMinimum", kIntegerType | kFractionType},
    Keyword{"format", kStringType},
    Keyword{"items", kArrayType},
    Keyword{"maxItems", kArrayType},
    Keyword{"maxLength", kStringType},
    Keyword{"maximum", kIntegerType | kFractionType},
    Keyword{"minItems", kArrayType},
    Keyword{"minLength", kStringType},
    Keyword{"minimum", kIntegerType | kFractionType},
    Keyword{"oneOf", 0},
    Keyword{"pattern", kStringType},
    Keyword{"prefixItems", kArrayType},
    Keyword{"properties", kObjectType},
    Keyword{"required", kObjectType},
    Keyword{"type", 0},
    Keyword{"uniqueItems", kArrayType},
};

const Keyword* find_keyword(std::string_view name) {
  const auto* found = std::ranges::find(kKeywords, name, &Keyword::name);
  return found == kKeywords.end() ? nullptr : found;
}

// Formats as expressions, each of which leaves out some of what its standard allows and nothing that it does not.
#define COMPUTRON_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define COMPUTRON_DATE                                                                                    \
  "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
  "02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define COMPUTRON_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define COMPUTRON_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", COMPUTRON_DATE},
    {"time", COMPUTRON_TIME},
    {"date-time", COMPUTRON_DATE "T" COMPUTRON_TIME},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4", "(?:" COMPUTRON_OCTET "\\.){3}" COMPUTRON_OCTET},
    {"hostname", COMPUTRON_LABEL "(?:\\." COMPUTRON_LABEL "){0,5}"},
    {"email", "[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@" COMPUTRON_LABEL "(?:\\." COMPUTRON_LABEL "){1,5}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*://" COMPUTRON_LABEL "(?:\\." COMPUTRON_LABEL
            "){0,5}(?::[0-9]{1,4})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"
            "(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"},
};
#undef COMPUTRON_TIME
#undef COMPUTRON_DATE
#undef COMPUTRON_LABEL
#undef COMPUTRON_OCTET

std::string below(const std::string& path, std::string_view keyword) { return fmt::format("{}/{}", path, keyword); }

// What a schema says but for one or two keywords. What limits nothing is left out, since it may be long.
Json without(const Json& schema, std::string_view keyword, std::string_view other = {}) {
  Json rest = Json::object();
  for (const auto& [name, value] : schema.items()) {
    if (name != keyword && name != other && !is_annotation(name)) rest[name] = value;
  }
  return rest;
}

class SchemaWriter {
 public:
  explicit SchemaWriter(GrammarBuilder& grammar, const Json& root) : grammar_(grammar), merger_(root) {}

  GrammarRuleId whole();
  GrammarRuleId any_object();

 private:
  using Node = GrammarNodeId;
  struct Property {
    std::string name;
    const Json* schema = nullptr;  // null: what "additionalProperties" says
    bool is_needed = false;
  };
  using Properties = std::vector<Property>;

  // What stands where in the text is written from a node on; each returns the node behind it.
  Node value(Node from, const Json& schema, const std::string& path, int depth);
  Node alternatives(Node from, const Json& rest, const Json& list, const std::string& path, int depth);
  Node constants(Node from, const Json& schema, const std::string& path);
  Node typed(Node from, const Json& schema, SchemaTypes types, const std::string& path, int depth);
  Node object(Node from, const Json& schema, const std::string& path, int depth);
  Node other_key(Node from, const std::vector<std::string>& names);
  Node array(Node from, const Json& schema, const std::string& path, int depth);
  Node string(Node from, const Json& schema, const std::string& path);
  Node number(Node from, const Json& schema, bool integer, const std::string& path);
  Node space(Node from) { return grammar_.call(from, space_rule()); }
  Node colon(Node from) { return space(grammar_.literal(from, ":")); }
  Node comma(Node from) { return space(grammar_.literal(from, ",")); }
  Node any_text(Node from);

  GrammarRuleId space_rule();
  GrammarRuleId any_value();
  GrammarRuleId rule_of(const std::string& pointer, const std::string& path);
  // A rule of its own for a schema that is read in several places.
  GrammarRuleId rule_for(const Json& schema, const std::string& path, int depth);
  Json without_all_of(const Json& schema, const std::string& path);

  static void check(const Json& schema, const std::string& path);
  static SchemaTypes types_of(const Json& schema, const std::string& path);
  static std::uint32_t count(const Json& schema, const char* keyword, std::uint32_t absent, const std::string& path);
  static std::optional<NumberBound> bound(const Json& schema, const char* keyword, const char* exclusive, bool low,
                                          const std::string& path);
  static Properties properties_of(const Json& schema, const std::string& path);
  static std::vector<std::string> required(const Json& schema, const std::string& path);

  GrammarBuilder& grammar_;
  SchemaMerger merger_;
  std::map<std::string, GrammarRuleId> references_;
  std::deque<std::pair<std::string, const Json*>> to_write_;  // referred to
  std::optional<GrammarRuleId> space_, any_value_, any_object_;
};

GrammarRuleId SchemaWriter::whole() {
  const GrammarRuleId start = rule_of("#", "#");
  while (!to_write_.empty()) {
    const auto [pointer, schema] = to_write_.front();
    to_write_.pop_front();
    grammar_.accept(value(grammar_.first_node(references_.at(pointer)), *schema, pointer, 0));
  }
  return start;
}

GrammarRuleId SchemaWriter::rule_of(const std::string& pointer, const std::string& path) {
  const auto [place, is_new] = references_.try_emplace(pointer, 0);
  if (is_new) {
    to_write_.emplace_back(pointer, &merger_.target(pointer, path));
    place->second = grammar_.add_rule();
  }
  return place->second;
}

GrammarRuleId SchemaWriter::rule_for(const Json& schema, const std::string& path, int depth) {
  if (schema == true || (schema.is_object() && schema.empty())) return any_value();
  const GrammarRuleId rule = grammar_.add_rule();
  grammar_.accept(value(grammar_.first_node(rule), schema, path, depth));
  return rule;
}

GrammarRuleId SchemaWriter::space_rule() {
  if (space_) return *space_;
  space_ = grammar_.add_rule();
  const Node from = grammar_.first_node(*space_), to = grammar_.add_node();
  grammar_.accept(from);
  grammar_.accept(to);
  grammar_.add_bytes(from, ' ', ' ', to);
  const Node line = grammar_.literal(from, "\n");
  grammar_.accept(line);
  for (const auto& [byte, most] : {std::pair{' ', kSpaces}, std::pair{'\t', kTabs}}) {
    Node at = line;
    for (int i = 0; i < most; ++i) {
      at = grammar_.literal(at, std::string_view(&byte, 1));
      grammar_.accept(at);
    }
  }
  return *space_;
}

SchemaWriter::Node SchemaWriter::any_text(Node from) {
  const Node to = grammar_.add_node();
  grammar_.add_text(grammar_.literal(from, "\""), {.to = to});
  return to;
}

GrammarRuleId SchemaWriter::any_object() {
  if (any_object_) return *any_object_;
  any_object_ = grammar_.add_rule();
  const Node open = grammar_.literal(grammar_.first_node(*any_object_), "{");
  const Node key = grammar_.add_node();
  grammar_.add_silent(space(open), key);
  const Node behind = grammar_.call(colon(any_text(key)), any_value());
  grammar_.add_silent(comma(behind), key);
  const Node end = grammar_.literal(space(behind), "}");
  grammar_.accept(end);
  grammar_.add_bytes(space(open), '}', '}', end);
  return *any_object_;
}

GrammarRuleId SchemaWriter::any_value() {
  if (any_value_) return *any_value_;
  any_value_ = grammar_.add_rule();
  const Node from = grammar_.first_node(*any_value_);
  const Json anything = Json::object();
  for (const Node end :
       {any_text(from), add_number(grammar_, from, std::nullopt, std::nullopt), grammar_.call(from, any_object()),
        array(from, anything, "#", 0), grammar_.one_of(from, {"true", "false", "null"})}) {
    grammar_.accept(end);
  }
  return *any_value_;
}

void SchemaWriter::check(const Json& schema, const std::string& path) {
  for (const auto& [name, ignored] : schema.items()) {
    if (find_keyword(name) == nullptr && !is_annotation(name)) {
      refuse_schema(path, fmt::format("the keyword '{}' is not served", cut(name)));
    }
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) {
    refuse_schema(path, "the keyword 'uniqueItems' is not served");
  }
}

// What "allOf" asks for is asked for by the schema itself.
Json SchemaWriter::without_all_of(const Json& schema, const std::string& path) {
  Json rest = without(schema, "$ref", "allOf");
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) refuse_schema(path, "'$ref' must be a text");
    rest = merger_.merged(merger_.target(schema["$ref"].get<std::string>(), path), rest, path);
  }
  if (!schema.contains("allOf")) return rest;
  if (!schema["allOf"].is_array()) refuse_schema(path, "'allOf' must be a list");
  for (const Json& other : schema["allOf"]) rest = merger_.merged(rest, other, path);
  return rest;
}

SchemaWriter::Node SchemaWriter::value(Node from, const Json& schema, const std::string& path, int depth) {
  if (depth > kMaxInline) refuse_schema(path, "schemas that hold together, without an end");
  if (schema == true) return grammar_.call(from, any_value());
  if (schema == false) return grammar_.add_node();  // to which nothing leads
  if (!schema.is_object()) refuse_schema(path, "a schema must be an object, true or false");
  check(schema, path);
  const bool limits = std::ranges::any_of(schema.items(), [](const auto& item) { return !is_annotation(item.key()); });
  if (!limits) return grammar_.call(from, any_value());
  if (&merger_.resolved(schema, path) != &schema) {
    return grammar_.call(from, rule_of(schema["$ref"].get<std::string>(), path));
  }
  if (schema.contains("$ref") || schema.contains("allOf")) {
    return value(from, without_all_of(schema, path), path, depth + 1);
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    const Json& list = schema[keyword];
    if (!list.is_array() || list.empty()) refuse_schema(path, fmt::format("'{}' must be a list, not empty", keyword));
    const Json rest = without(schema, keyword);
    if (rest.contains("oneOf")) refuse_schema(path, "'anyOf' beside 'oneOf' is not served");
    for (std::size_t i = 0; keyword == std::string_view("oneOf") && i < list.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if (merger_.apart(list[i], list[k], path)) continue;
        refuse_schema(path, fmt::format("'oneOf' is served where it is plain that its schemas exclude each other; "
                                        "numbers {} and {} may both hold ('anyOf' takes them)",
                                        k, i));
      }
    }
    return alternatives(from, rest, list, below(path, keyword), depth);
  }
  if (schema.contains("const") || schema.contains("enum")) return constants(from, schema, path);
  return typed(from, schema, types_of(schema, path), path, depth);
}

SchemaWriter::Node SchemaWriter::alternatives(Node from, const Json& rest, const Json& list, const std::string& path,
                                              int depth) {
  const Node end = grammar_.add_node();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}/{}", path, i);
    const Node behind = rest.empty() ? value(from, list[i], place, depth + 1)
                                     : value(from, merger_.merged(rest, list[i], place), place, depth + 1);
    grammar_.add_silent(behind, end);
  }
  return end;
}

// Types that "type" leaves of the constants' go; other keywords beside them are refused.
SchemaWriter::Node SchemaWriter::constants(Node from, const Json& schema, const std::string& path) {
  for (const auto& [name, ignored] : schema.items()) {
    if (name == "const" || name == "enum" || name == "type" || is_annotation(name)) continue;
    refuse_schema(path, fmt::format("'{}' beside 'const' or 'enum' is not served", cut(name)));
  }
  std::vector<Json> values;
  if (schema.contains("enum")) {
    if (!schema["enum"].is_array()) refuse_schema(path, "'enum' must be a list");
    values = schema["enum"].get<std::vector<Json>>();
  } else {
    values.push_back(schema["const"]);
  }
  if (schema.contains("enum") && schema.contains("const")) {
    std::erase_if(values, [&](const Json& value) { return value != schema["const"]; });
  }
  const SchemaTypes types = schema.contains("type") ? types_named(schema["type"], path) : kAllTypes;
  std::erase_if(values, [types](const Json& value) { return (type_of_value(value) & types) == 0; });
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(value.dump());
  return grammar_.one_of(from, {texts.begin(), texts.end()});
}

// Without "type": what the other keywords limit; where they limit nothing, anything.
SchemaTypes SchemaWriter::types_of(const Json& schema, const std::string& path) {
  if (schema.contains("type")) return types_named(schema["type"], path);
  SchemaTypes types = 0;
  for (const auto& [name, ignored] : schema.items()) {
    const Keyword* keyword = find_keyword(name);
    if (keyword != nullptr) types |= keyword->types;
  }
  return types != 0 ? types : kAllTypes;
}

SchemaWriter::Node SchemaWriter::typed(Node from, const Json& schema, SchemaTypes types, const std::string& path,
                                       int depth) {
  const Node end = grammar_.add_node();
  const auto add = [&](Node behind) { grammar_.add_silent(behind, end); };
  if ((types & kNullType) != 0) add(grammar_.literal(from, "null"));
  if ((types & kBooleanType) != 0) add(grammar_.one_of(from, {"true", "false"}));
  if ((types & kFractionType) != 0) {
    add(number(from, schema, /*integer=*/false, path));
  } else if ((types & kIntegerType) != 0) {
    add(number(from, schema, /*integer=*/true, path));
  }
  if ((types & kStringType) != 0) add(string(from, schema, path));
  if ((types & kArrayType) != 0) add(array(from, schema, path, depth));
  if ((types & kObjectType) != 0) add(object(from, schema, path, depth));
  return end;
}

std::uint32_t SchemaWriter::count(const Json& schema, const char* keyword, std::uint32_t absent,
                                  const std::string& path) {
  if (!schema.contains(keyword)) return absent;
  const Json& value = schema[keyword];
  const bool whole = value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
  if (!whole || value.get<double>() < 0 || value.get<double>() > 0xfffffffe) {
    refuse_schema(path, fmt::format("'{}' must be an integer, 0 or more", keyword));
  }
  return static_cast<std::uint32_t>(value.get<double>());
}

std::vector<std::string> SchemaWriter::required(const Json& schema, const std::string& path) {
  std::vector<std::string> names;
  if (!schema.contains("required")) return names;
  if (!schema["required"].is_array()) refuse_schema(path, "'required' must be a list of names");
  for (const Json& name : schema["required"]) {
    if (!name.is_string()) refuse_schema(path, "'required' must be a list of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

// What is required and not described is what other properties are: anything, unless that is ruled out.
SchemaWriter::Properties SchemaWriter::properties_of(const Json& schema, const std::string& path) {
  Properties all;
  const std::vector<std::string> needed = required(schema, path);
  std::set<std::string_view> not_described(needed.begin(), needed.end());
  const std::set<std::string_view> all_needed = not_described;
  if (schema.contains("properties")) {
    if (!schema["properties"].is_object()) refuse_schema(path, "'properties' must be an object");
    for (const auto& [name, property] : schema["properties"].items()) {
      all.push_back({name, &property, all_needed.contains(name)});
      not_described.erase(name);
    }
  }
  if (all.size() + not_described.size() > kMaxProperties) {
    refuse_schema(path, fmt::format("more than {} properties", kMaxProperties));
  }
  for (const std::string& name : needed) {
    if (not_described.erase(name) != 0) all.push_back({name, nullptr, true});
  }
  return all;
}

// Two nodes before each property: `first`, where none has been written, and `later`, where one has.
SchemaWriter::Node SchemaWriter::object(Node from, const Json& schema, const std::string& path, int depth) {
  static const Json anything = true, nothing = false;
  const Properties properties = properties_of(schema, path);
  const bool describes = schema.contains("properties") && !schema["properties"].empty();
  const bool says = schema.contains("additionalProperties");
  const Json& undescribed = says ? schema["additionalProperties"] : anything;
  const Json& others = says || !describes ? undescribed : nothing;
  std::optional<GrammarRuleId> rule;  // of what is not described
  const auto undescribed_value = [&](Node at) {
    if (!rule) rule = rule_for(undescribed, below(path, "additionalProperties"), depth + 1);
    return grammar_.call(at, *rule);
  };
  const Node open = grammar_.literal(from, "{");
  Node first = grammar_.add_node(), later = grammar_.add_node();
  grammar_.add_silent(open, first);
  std::vector<std::string> names;
  for (const auto& [name, property, is_needed] : properties) {
    names.push_back(name);
    const Node key = grammar_.add_node();
    grammar_.add_silent(space(first), key);
    grammar_.add_silent(comma(later), key);
    const Node before = colon(grammar_.literal(key, Json(name).dump()));
    const Node behind = property == nullptr
                            ? undescribed_value(before)
                            : value(before, *property, below(below(path, "properties"), name), depth + 1);
    const Node next_first = grammar_.add_node(), next_later = grammar_.add_node();
    grammar_.add_silent(behind, next_later);
    if (!is_needed) {
      grammar_.add_silent(first, next_first);
      grammar_.add_silent(later, next_later);
    }
    first = next_first;
    later = next_later;
  }
  if (others != false) {  // any number of properties with other names
    const Node key = grammar_.add_node();
    grammar_.add_silent(space(first), key);
    grammar_.add_silent(comma(later), key);
    grammar_.add_silent(undescribed_value(colon(other_key(key, names))), later);
  }
  const Node end = grammar_.literal(space(first), "}");
  grammar_.add_bytes(space(later), '}', '}', end);
  return end;
}

// A key without escapes, so that each name is spelt in one way: characters are followed while they begin one of the
// names.
SchemaWriter::Node SchemaWriter::other_key(Node from, const std::vector<std::string>& names) {
  struct Branch {
    std::map<std::uint32_t, std::size_t> next;
    bool is_name = false;
  };
  std::vector<Branch> tree(1);
  for (const std::string& name : names) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < name.size();) {
      const auto lead = static_cast<unsigned char>(name[i]);
      const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      std::uint32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
      for (std::size_t k = 1; k < length && i + k < name.size(); ++k) {
        c = c << 6 | (static_cast<unsigned char>(name[i + k]) & 0x3Fu);
      }
      const auto [place, is_new] = tree[at].next.try_emplace(c, tree.size());
      at = place->second;
      if (is_new) tree.emplace_back();
      i += length;
    }
    tree[at].is_name = true;
  }
  CharSet plain = CharSet::all().without(CharSet("\"\\")).without(CharSet::of(0, 0x1F));
  std::vector<Node> nodes;
  for (std::size_t i = 0; i < tree.size(); ++i) nodes.push_back(grammar_.add_node());
  const Node end = grammar_.add_node(), others = grammar_.add_node();
  grammar_.add_text(others, {.escapes = false, .to = end});
  grammar_.add_silent(grammar_.literal(from, "\""), nodes[0]);
  for (std::size_t i = 0; i < tree.size(); ++i) {
    CharSet leave = plain;
    for (const auto& [c, next] : tree[i].next) {
      const CharSet one = CharSet::of(c, c);
      leave = leave.without(one);
      add_characters(grammar_, nodes[i], one.intersection(plain), nodes[next]);
    }
    add_characters(grammar_, nodes[i], leave, others);
    if (!tree[i].is_name) grammar_.add_bytes(nodes[i], '"', '"', end);
  }
  return end;
}

SchemaWriter::Node SchemaWriter::array(Node from, const Json& schema, const std::string& path, int depth) {
  static const Json none = Json::array(), anything = true;
  const Json& prefix = schema.contains("prefixItems") ? schema["prefixItems"] : none;
  if (!prefix.is_array()) refuse_schema(path, "'prefixItems' must be a list");
  const Json& items = schema.contains("items") ? schema["items"] : anything;
  if (items.is_array()) refuse_schema(path, "'items' as a list is not served; 'prefixItems' is");
  const std::uint32_t min = count(schema, "minItems", 0, path);
  std::uint32_t max = count(schema, "maxItems", GrammarText::kUnbounded, path);
  const auto prefixes = static_cast<std::uint32_t>(prefix.size());
  if (items == false) max = std::min(max, prefixes);
  const bool unbounded = max == GrammarText::kUnbounded;
  const std::uint32_t counted = unbounded ? std::max({min, prefixes, 1u}) : max;
  std::optional<GrammarRuleId> rule;
  const auto item = [&](Node at, std::uint32_t i) {
    if (i < prefixes) return value(at, prefix[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1);
    if (!rule) rule = rule_for(items, below(path, "items"), depth + 1);
    return grammar_.call(at, *rule);
  };

  const Node end = grammar_.add_node();
  Node at = grammar_.literal(from, "[");
  for (std::uint32_t i = 0;; ++i) {
    if (i >= min) grammar_.add_bytes(space(at), ']', ']', end);
    if (i == counted) break;
    const Node behind = item(i == 0 ? space(at) : comma(at), i);
    at = grammar_.add_node();
    grammar_.add_silent(behind, at);
  }
  if (unbounded) grammar_.add_silent(item(comma(at), counted), at);
  return end;
}

SchemaWriter::Node SchemaWriter::string(Node from, const Json& schema, const std::string& path) {
  const std::uint32_t min = count(schema, "minLength", 0, path);
  const std::uint32_t max = count(schema, "maxLength", GrammarText::kUnbounded, path);
  const bool has_pattern = schema.contains("pattern"), has_format = schema.contains("format");
  if (!has_pattern && !has_format) {
    const Node to = grammar_.add_node();
    if (min <= max) grammar_.add_text(grammar_.literal(from, "\""), {.min = min, .max = max, .to = to});
    return to;
  }
  const char* keyword = has_pattern ? "pattern" : "format";
  if (has_pattern && has_format) refuse_schema(path, "'pattern' beside 'format' is not served");
  if (schema.contains("minLength") || schema.contains("maxLength")) {
    refuse_schema(path, fmt::format("'{}' beside 'minLength' or 'maxLength' is not served", keyword));
  }
  if (!schema[keyword].is_string()) refuse_schema(path, fmt::format("'{}' must be a text", keyword));
  const std::string& text = schema[keyword].get_ref<const std::string&>();
  const Node open = grammar_.literal(from, "\"");
  if (has_pattern) return grammar_.literal(add_regex(grammar_, open, text, RegexUse::kJsonSearch), "\"");
  for (const auto& [name, expression] : kFormats) {
    if (name == text) return grammar_.literal(add_regex(grammar_, open, expression, RegexUse::kJsonWhole), "\"");
  }
  refuse_schema(path, fmt::format("the format {} is not served", shown(text)));
}

std::optional<NumberBound> SchemaWriter::bound(const Json& schema, const char* keyword, const char* exclusive, bool low,
                                               const std::string& path) {
  std::optional<NumberBound> bound;
  for (const char* name : {keyword, exclusive}) {
    if (!schema.contains(name)) continue;
    if (!schema[name].is_number()) refuse_schema(path, fmt::format("'{}' must be a number", name));
    const NumberBound other{schema[name].get<double>(), name == exclusive};
    const bool tighter = !bound || (low ? other.value >= bound->value : other.value <= bound->value);
    if (tighter) bound = other;
  }
  return bound;
}

SchemaWriter::Node SchemaWriter::number(Node from, const Json& schema, bool integer, const std::string& path) {
  const auto low = bound(schema, "minimum", "exclusiveMinimum", /*low=*/true, path);
  const auto high = bound(schema, "maximum", "exclusiveMaximum", /*low=*/false, path);
  // Beyond 2^53 - 1 a double tells integers no longer apart; beyond 10^18 a bound leaves all integers of 18 digits or
  // none of them, and rounding does not matter.
  constexpr double kMostExact = 9'007'199'254'740'991.0, kBeyondDigits = 1e18;
  const auto is_rounded = [](const std::optional<NumberBound>& of) {
    return of && std::fabs(of->value) > kMostExact && std::fabs(of->value) <= kBeyondDigits;
  };
  if (integer && is_rounded(low)) refuse_schema(path, "an integer's 'minimum' is served within 9007199254740991");
  if (integer && is_rounded(high)) refuse_schema(path, "an integer's 'maximum' is served within 9007199254740991");
  return (integer ? add_integer : add_number)(grammar_, from, low, high);
}

}  // namespace

GrammarRuleId add_schema(GrammarBuilder& grammar, const nlohmann::ordered_json& schema) {
  return SchemaWriter(grammar, schema).whole();
}

GrammarRuleId add_any_object(GrammarBuilder& grammar) {
  return SchemaWriter(grammar, nlohmann::ordered_json(true)).any_object();
}

}  // namespace computron
