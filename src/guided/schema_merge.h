// Schemas that hold at the same time, as one schema; and schemas of which at most one holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

namespace computron {

using SchemaJson = nlohmann::ordered_json;

// RequestError{invalid_parameter}: `why`, at the place `path` of the schema.
[[noreturn]] void refuse_schema(const std::string& path, const std::string& why);

// Keywords that say nothing of what is valid.
bool is_annotation(std::string_view keyword);

// The types that a schema leaves, one bit each.
using SchemaTypes = std::uint8_t;
inline constexpr SchemaTypes kNullType = 1, kBooleanType = 2, kIntegerType = 4, kStringType = 16, kArrayType = 32,
                             kObjectType = 64, kAllTypes = 127;
inline constexpr SchemaTypes kFractionType = 8;  // a number that is no integer
// What "type" names: a name, or a list of names.
SchemaTypes types_named(const SchemaJson& type, const std::string& path);
SchemaTypes type_of_value(const SchemaJson& value);

class SchemaMerger {
 public:
  // Borrows the document that references point into.
  explicit SchemaMerger(const SchemaJson& root) : root_(root) {}

  // What "#/..." points to.
  const SchemaJson& target(const std::string& pointer, const std::string& path);
  // The schema itself, or what it refers to if it is a reference and nothing else.
  const SchemaJson& resolved(const SchemaJson& schema, const std::string& path);
  // Both at once. What they say of one keyword is joined where that is simple, and refused by name elsewhere.
  SchemaJson merged(const SchemaJson& a, const SchemaJson& b, const std::string& path, int depth = 0);
  // Whether it is plain that no value is valid for both: other types, other constants, or objects that a property tells
  // apart.
  bool apart(const SchemaJson& a, const SchemaJson& b, const std::string& path);

 private:
  // Null: the object has none of that name.
  const SchemaJson* member(const SchemaJson& object, const std::string& name);
  void spend(std::size_t values, const std::string& path);
  // For comparing each of one list with each of the other.
  void spend_pairs(const SchemaJson& a, const SchemaJson& b, const std::string& path);
  bool no_common(const SchemaJson& a, const SchemaJson& b, const std::string& path);
  void join(SchemaJson& into, const std::string& keyword, const SchemaJson& value, const std::string& path, int depth);

  const SchemaJson& root_;
  // Of the objects that pointers lead through: ordered_json looks through all of an object's keys for one of them.
  std::unordered_map<const SchemaJson*, std::unordered_map<std::string_view, const SchemaJson*>> members_;
  std::map<std::string, const SchemaJson*> resolved_;  // by pointer
  std::size_t spent_ = 0;                              // values looked at
};

}  // namespace computron
