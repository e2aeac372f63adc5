#include "src/guided/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "computron/base/json_text.h"
#include "src/guided/refusal.h"

namespace computron {
namespace {

constexpr int kMaxMerges = 32;  // in one another
constexpr int kMaxReferences = 32;
constexpr std::size_t kMostSpent = 2'000'000;

constexpr std::array<std::string_view, 12> kAnnotations = {"$comment", "$defs",      "$id",         "$schema",
                                                           "default",  "deprecated", "definitions", "description",
                                                           "examples", "readOnly",   "title",       "writeOnly"};

constexpr std::array<std::pair<std::string_view, SchemaTypes>, 7> kTypeNames = {
    {{"null", kNullType},
     {"boolean", kBooleanType},
     {"integer", kIntegerType},
     {"number", kIntegerType | kFractionType},
     {"string", kStringType},
     {"array", kArrayType},
     {"object", kObjectType}}};

// Values, and what long texts weigh beside them.
std::size_t count_values(const SchemaJson& value) {
  constexpr std::size_t kBytes = 64;  // of a text, that cost what a value does
  if (value.is_string()) return 1 + value.get_ref<const std::string&>().size() / kBytes;
  std::size_t count = 1;
  if (value.is_array()) {
    for (const SchemaJson& item : value) count += count_values(item);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) count += key.size() / kBytes + count_values(item);
  }
  return count;
}

// The values of "const" or "enum"; null: it has neither.
SchemaJson constants(const SchemaJson& schema) {
  if (!schema.is_object()) return nullptr;
  if (schema.contains("const")) return SchemaJson::array({schema["const"]});
  return schema.contains("enum") && schema["enum"].is_array() ? schema["enum"] : SchemaJson(nullptr);
}

SchemaTypes types_left(const SchemaJson& schema, const std::string& path) {
  if (!schema.is_object()) return schema == false ? SchemaTypes{0} : kAllTypes;
  if (const SchemaJson values = constants(schema); !values.is_null()) {
    SchemaTypes types = 0;
    for (const SchemaJson& value : values) types |= type_of_value(value);
    return types;
  }
  return schema.contains("type") ? types_named(schema["type"], path) : kAllTypes;
}

bool requires_property(const SchemaJson& schema, const std::string& name) {
  return schema.contains("required") && schema["required"].is_array() &&
         std::ranges::find(schema["required"], SchemaJson(name)) != schema["required"].end();
}

SchemaJson names_of(SchemaTypes types) {
  SchemaJson names = SchemaJson::array();
  for (const auto& [name, bits] : kTypeNames) {
    const bool covered = bits == kIntegerType && (types & kFractionType) != 0;  // by "number"
    if ((types & bits) == bits && !covered) names.push_back(std::string(name));
  }
  return names;
}

std::size_t required_of(const SchemaJson& schema) {
  return schema.contains("required") ? schema["required"].size() : 0;
}

std::size_t properties_of(const SchemaJson& schema) {
  return schema.contains("properties") ? schema["properties"].size() : 0;
}

// Whether more properties than the schema names may be there, as "additionalProperties" says.
bool is_closed(const SchemaJson& schema) {
  return schema.contains("additionalProperties") && schema["additionalProperties"] != true;
}

bool names_others(const SchemaJson& schema, const SchemaJson& beside) {
  if (!schema.contains("properties") || !schema["properties"].is_object()) return false;
  const auto& mine = schema["properties"];
  return std::ranges::any_of(mine.items(), [&beside](const auto& property) {
    return !beside.contains("properties") || !beside["properties"].contains(property.key());
  });
}

// Whether "items" of one schema would hold of other places once "prefixItems" of the other stood beside it.
bool items_differ_in_place(const SchemaJson& schema, const SchemaJson& beside) {
  if (!schema.contains("prefixItems") || !beside.contains("items")) return false;
  return !beside.contains("prefixItems") || beside["prefixItems"] != schema["prefixItems"];
}

}  // namespace

void refuse_schema(const std::string& path, const std::string& why) {
  refuse_guide(fmt::format("{}: {}", cut(path, 200), why));
}

bool is_annotation(std::string_view keyword) { return std::ranges::find(kAnnotations, keyword) != kAnnotations.end(); }

SchemaTypes types_named(const SchemaJson& type, const std::string& path) {
  if (type.is_array()) {
    SchemaTypes types = 0;
    for (const SchemaJson& name : type) {
      if (!name.is_array()) types |= types_named(name, path);
    }
    return types;
  }
  for (const auto& [name, bits] : kTypeNames) {
    if (type.is_string() && type.get_ref<const std::string&>() == name) return bits;
  }
  refuse_schema(path, fmt::format("'type' names no type: {}", cut(type.dump())));
}

SchemaTypes type_of_value(const SchemaJson& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_number_integer()) return kIntegerType;
  if (value.is_number()) return std::trunc(value.get<double>()) == value.get<double>() ? kIntegerType : kFractionType;
  if (value.is_string()) return kStringType;
  return value.is_array() ? kArrayType : kObjectType;
}

const SchemaJson* SchemaMerger::member(const SchemaJson& object, const std::string& name) {
  const auto [members, is_new] = members_.try_emplace(&object);
  if (is_new) {
    for (const auto& [key, value] : object.get_ref<const SchemaJson::object_t&>()) members->second.emplace(key, &value);
  }
  const auto found = members->second.find(name);
  return found == members->second.end() ? nullptr : found->second;
}

const SchemaJson& SchemaMerger::target(const std::string& pointer, const std::string& path) {
  const SchemaJson* at = pointer.starts_with('#') ? &root_ : nullptr;
  try {
    std::vector<std::string> names;  // the last one first
    if (at != nullptr) {
      for (SchemaJson::json_pointer place(pointer.substr(1)); !place.empty(); place.pop_back())
        names.push_back(place.back());
    }
    for (; at != nullptr && !names.empty(); names.pop_back()) {
      if (at->is_object()) {
        at = member(*at, names.back());
      } else {
        const SchemaJson::json_pointer item = SchemaJson::json_pointer() / names.back();
        at = at->contains(item) ? &at->at(item) : nullptr;
      }
    }
  } catch (const SchemaJson::exception&) {
    at = nullptr;
  }
  if (at == nullptr) refuse_schema(path, fmt::format("'$ref' {} points to nothing here", shown(pointer)));
  return *at;
}

// Found once: a document may have thousands of references to each of its definitions.
const SchemaJson& SchemaMerger::resolved(const SchemaJson& schema, const std::string& path) {
  const auto refers = [](const SchemaJson& at) {
    return at.is_object() && at.contains("$ref") && std::ranges::all_of(at.items(), [](const auto& item) {
             return item.key() == "$ref" || is_annotation(item.key());
           });
  };
  if (!refers(schema)) return schema;
  const auto pointer = [&path](const SchemaJson& at) -> const std::string& {
    if (!at["$ref"].is_string()) refuse_schema(path, "'$ref' must be a text");
    return at["$ref"].get_ref<const std::string&>();
  };
  const auto known = resolved_.find(pointer(schema));
  if (known != resolved_.end()) return *known->second;
  const SchemaJson* at = &schema;
  for (int i = 0; i < kMaxReferences; ++i) {
    at = &target(pointer(*at), path);
    if (!refers(*at)) return *(resolved_[pointer(schema)] = at);
  }
  refuse_schema(path, "references to references to references");
}

// What all this costs is bounded by the values that are looked at, each as often as it is.
void SchemaMerger::spend(std::size_t values, const std::string& path) {
  spent_ += values;
  if (spent_ > kMostSpent)
    refuse_schema(path, "schemas that hold together, or exclude each other, are too many and too long");
}

// Two values are compared in no more than the smaller one has.
void SchemaMerger::spend_pairs(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  spend(std::min(count_values(a) * b.size(), count_values(b) * a.size()), path);
}

bool SchemaMerger::no_common(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  spend_pairs(a, b, path);
  return std::ranges::none_of(a, [&b](const SchemaJson& value) { return std::ranges::find(b, value) != b.end(); });
}

SchemaJson SchemaMerger::merged(const SchemaJson& a, const SchemaJson& b, const std::string& path, int depth) {
  if (depth > kMaxMerges) refuse_schema(path, "too many schemas that hold together, in one another");
  const SchemaJson &first = resolved(a, path), &second = resolved(b, path);
  spend(count_values(first) + count_values(second), path);
  if (first == false || second == false) return false;
  if (first == true) return second;
  if (second == true) return first;
  if (!first.is_object() || !second.is_object()) refuse_schema(path, "a schema must be an object, true or false");
  spend(first.size() * second.size() + properties_of(first) * properties_of(second), path);
  if (items_differ_in_place(first, second) || items_differ_in_place(second, first)) {
    refuse_schema(path, "'prefixItems' beside a schema with 'items' and other 'prefixItems' is not served");
  }
  if ((is_closed(first) && names_others(second, first)) || (is_closed(second) && names_others(first, second))) {
    refuse_schema(path, "'additionalProperties' beside schemas that name other properties is not served");
  }
  SchemaJson all = first;
  for (const auto& [keyword, value] : second.items()) {
    if (is_annotation(keyword)) continue;
    if (!all.contains(keyword)) {
      all[keyword] = value;
    } else if (all[keyword] != value) {
      join(all, keyword, value, path, depth);
    }
  }
  return all;
}

void SchemaMerger::join(SchemaJson& into, const std::string& keyword, const SchemaJson& value, const std::string& path,
                        int depth) {
  SchemaJson& mine = into[keyword];
  const bool numbers = mine.is_number() && value.is_number();
  if (mine.is_array() && value.is_array()) spend_pairs(mine, value, path);
  if (keyword == "type") {
    mine = names_of(types_named(mine, path) & types_named(value, path));
  } else if (keyword == "required" && mine.is_array() && value.is_array()) {
    for (const SchemaJson& name : value) {
      if (std::ranges::find(mine, name) == mine.end()) mine.push_back(name);
    }
  } else if (keyword == "properties" && mine.is_object() && value.is_object()) {
    for (const auto& [name, schema] : value.items()) {
      mine[name] = mine.contains(name) ? merged(mine[name], schema, path, depth + 1) : schema;
    }
  } else if (keyword == "items") {
    mine = merged(mine, value, path, depth + 1);
  } else if (keyword == "enum" && mine.is_array() && value.is_array()) {
    const SchemaJson both = mine;
    mine = SchemaJson::array();
    std::ranges::copy_if(both, std::back_inserter(mine),
                         [&value](const SchemaJson& v) { return std::ranges::find(value, v) != value.end(); });
  } else if (numbers && (keyword.starts_with("min") || keyword == "exclusiveMinimum")) {
    if (mine < value) mine = value;
  } else if (numbers && (keyword.starts_with("max") || keyword == "exclusiveMaximum")) {
    if (mine > value) mine = value;
  } else if (keyword == "allOf" && mine.is_array() && value.is_array()) {
    for (const SchemaJson& schema : value) mine.push_back(schema);
  } else {
    refuse_schema(path, fmt::format("two schemas with '{}' that hold together are not served", cut(keyword)));
  }
}

bool SchemaMerger::apart(const SchemaJson& a, const SchemaJson& b, const std::string& path) {
  const SchemaJson &first = resolved(a, path), &second = resolved(b, path);
  spend(count_values(first) + count_values(second), path);
  if ((types_left(first, path) & types_left(second, path)) == 0) return true;
  const SchemaJson values = constants(first), others = constants(second);
  if (!values.is_null() && !others.is_null()) return no_common(values, others, path);
  if (types_left(first, path) != kObjectType || types_left(second, path) != kObjectType) return false;
  if (!first.contains("properties") || !second.contains("properties")) return false;
  spend(properties_of(first) * properties_of(second), path);
  for (const auto& [name, schema] : first["properties"].items()) {
    if (!second["properties"].contains(name)) continue;
    spend(required_of(first) + required_of(second), path);
    if (!requires_property(first, name) || !requires_property(second, name)) continue;
    const SchemaJson mine = constants(resolved(schema, path)),
                     theirs = constants(resolved(second["properties"][name], path));
    if (!mine.is_null() && !theirs.is_null() && no_common(mine, theirs, path)) return true;
  }
  return false;
}

}  // namespace computron
