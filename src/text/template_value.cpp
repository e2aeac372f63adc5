#include "src/text/template_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "computron/base/json_text.h"
#include "computron/base/utf8.h"

namespace computron::jinja {
namespace {

constexpr int kMaxDepth = 64;

int depth_of(const Value& value) {
  if (const ListBody* list = value.list()) return list->depth;
  if (const MapBody* map = value.map()) return map->depth;
  return 0;
}

void deepen(int& depth, const Value& item) {
  if (!item.is_plain()) fail(fmt::format("{} within a list or a map", item.kind()));
  depth = std::max(depth, depth_of(item) + 1);
  if (depth > kMaxDepth) fail(fmt::format("lists nested deeper than {} levels", kMaxDepth));
}

// As Python writes a float.
std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const std::string text = fmt::format("{}", number);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string indentation(int indent, int level) { return indent < 0 ? "" : fmt::format("\n{:{}}", "", indent * level); }

std::string json_of(const Value& value, int indent, int level) {
  const char* const comma = indent < 0 ? ", " : ",";
  if (const ListBody* list = value.list()) {
    if (list->items.empty()) return "[]";
    std::string text = "[";
    for (const Value& item : list->items) {
      text += (text.size() > 1 ? comma : "") + indentation(indent, level + 1) + json_of(item, indent, level + 1);
    }
    return text + indentation(indent, level) + "]";
  }
  if (const MapBody* map = value.map()) {
    if (map->entries.empty()) return "{}";
    std::string text = "{";
    for (const auto& [key, item] : map->entries) {
      text += (text.size() > 1 ? comma : "") + indentation(indent, level + 1) + json_string(key) + ": " +
              json_of(item, indent, level + 1);
    }
    return text + indentation(indent, level) + "}";
  }
  if (const std::string* text = value.text()) return json_string(*text);
  if (value.is_none()) return "null";
  if (const bool* truth = value.get<bool>()) return *truth ? "true" : "false";
  if (value.is_number()) return value.printed();
  fail(fmt::format("{} is no JSON", value.kind()));
}

bool equal_entries(const Entries& a, const Entries& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&b](const auto& entry) {
           const Value* other = find(b, entry.first);
           return other != nullptr && equal(entry.second, *other);
         });
}

}  // namespace

Value::Value(List items) {
  auto body = std::make_shared<ListBody>(ListBody{.items = std::move(items)});
  for (const Value& item : body->items) deepen(body->depth, item);
  any_ = std::shared_ptr<const ListBody>(std::move(body));
}

Value::Value(Entries entries, int message) {
  auto body = std::make_shared<MapBody>(MapBody{.entries = std::move(entries), .message = message});
  for (const auto& [key, item] : body->entries) deepen(body->depth, item);
  any_ = std::shared_ptr<const MapBody>(std::move(body));
}

const std::string* Value::text() const {
  const auto* text = get<std::shared_ptr<const std::string>>();
  return text == nullptr ? nullptr : text->get();
}

const ListBody* Value::list() const {
  const auto* list = get<std::shared_ptr<const ListBody>>();
  return list == nullptr ? nullptr : list->get();
}

const MapBody* Value::map() const {
  const auto* map = get<std::shared_ptr<const MapBody>>();
  return map == nullptr ? nullptr : map->get();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const bool* truth = get<bool>()) return *truth;
  if (is_number()) return number("") != 0;
  if (const std::string* found = text()) return !found->empty();
  if (const ListBody* found = list()) return !found->items.empty();
  if (const MapBody* found = map()) return !found->entries.empty();
  return true;
}

std::int64_t Value::integer(std::string_view what) const {
  if (const auto* number = get<std::int64_t>()) return *number;
  if (const bool* truth = get<bool>()) return *truth ? 1 : 0;
  fail(fmt::format("{}: a whole number is needed, not {}", what, kind()));
}

double Value::number(std::string_view what) const {
  if (const double* number = get<double>()) return *number;
  return static_cast<double>(integer(what));
}

const std::string& Value::text_of(std::string_view what) const {
  if (const std::string* found = text()) return *found;
  fail(fmt::format("{}: a text is needed, not {}", what, kind()));
}

std::string Value::printed() const {
  if (is_undefined()) return "";
  if (is_none()) return "None";
  if (const bool* truth = get<bool>()) return *truth ? "True" : "False";
  if (const auto* number = get<std::int64_t>()) return fmt::format("{}", *number);
  if (const double* number = get<double>()) return float_text(*number);
  if (const std::string* found = text()) return *found;
  fail(fmt::format("{} is printed", kind()));
}

std::string_view Value::kind() const {
  static constexpr std::string_view kKinds[] = {
      "something undefined", "none",   "a boolean", "a whole number", "a number", "a text", "a list", "a map",
      "a namespace",         "a loop", "a macro"};
  static_assert(std::size(kKinds) == std::variant_size_v<Any>);
  return kKinds[any_.index()];
}

const Value* find(const Entries& entries, std::string_view key) {
  const auto found = std::find_if(entries.begin(), entries.end(), [key](const auto& e) { return e.first == key; });
  return found == entries.end() ? nullptr : &found->second;
}

void put(Entries& entries, std::string_view key, Value value) {
  const auto found = std::find_if(entries.begin(), entries.end(), [key](const auto& e) { return e.first == key; });
  if (found == entries.end()) {
    entries.emplace_back(key, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is<double>() && !b.is<double>()) return a.integer("") == b.integer("");
    return a.number("") == b.number("");
  }
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(), b.list()->items.end(),
                      equal);
  }
  if (a.map() != nullptr && b.map() != nullptr) return equal_entries(a.map()->entries, b.map()->entries);
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  if (!a.is<double>() && !b.is<double>() && a.is_number() && b.is_number()) return a.integer("") < b.integer("");
  if (a.is_number() && b.is_number()) return a.number("") < b.number("");
  fail(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

bool contains(const Value& all, const Value& one) {
  if (const std::string* text = all.text()) return text->find(one.text_of("in")) != std::string::npos;
  if (const ListBody* list = all.list()) {
    return std::any_of(list->items.begin(), list->items.end(), [&one](const Value& item) { return equal(item, one); });
  }
  if (const MapBody* map = all.map()) return one.text() != nullptr && find(map->entries, *one.text()) != nullptr;
  if (all.is_undefined()) return false;
  fail(fmt::format("{} holds nothing", all.kind()));
}

std::string to_json(const Value& value, int indent) { return json_of(value, indent, /*level=*/0); }

std::size_t byte_of(const std::string& text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_character(text, at);
  return at;
}

}  // namespace computron::jinja
