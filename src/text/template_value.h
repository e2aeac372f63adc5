// What the expressions of a Jinja template come to. Values are immutable but for namespaces, as in Jinja2's sandbox.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/text/template_lexer.h"

namespace computron::jinja {

class Value;
struct Macro;
using List = std::vector<Value>;
using Entries = std::vector<std::pair<std::string, Value>>;  // in order, each key once

struct Undefined {};
struct None {};

struct ListBody {
  List items;
  int depth = 1;  // of lists and maps within lists and maps
};
struct MapBody {
  Entries entries;
  int depth = 1;
  int message = -1;  // which of the conversation's it is, if it is one
};
struct Namespace {
  Entries entries;
};
// Where a loop stands, for what `loop.` says.
struct Loop {
  List items;
  std::size_t index = 0;
};

class Value {
 public:
  using Any = std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
                           std::shared_ptr<const ListBody>, std::shared_ptr<const MapBody>, std::shared_ptr<Namespace>,
                           std::shared_ptr<const Loop>, const Macro*>;

  Value() = default;  // undefined
  Value(None) : any_(None{}) {}
  Value(bool value) : any_(value) {}
  Value(std::int64_t value) : any_(value) {}
  Value(int) = delete;
  Value(double value) : any_(value) {}
  Value(std::string text) : any_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  // TemplateError if they are nested deeper than 64 levels, or hold what has no value of its own (a namespace, say).
  Value(List items);
  Value(Entries entries, int message = -1);
  Value(std::shared_ptr<Namespace> names) : any_(std::move(names)) {}
  Value(std::shared_ptr<const Loop> loop) : any_(std::move(loop)) {}
  Value(const Macro* macro) : any_(macro) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(any_);
  }
  template <class T>
  const T* get() const {
    return std::get_if<T>(&any_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  const std::string* text() const;
  const ListBody* list() const;
  const MapBody* map() const;
  // What can be an item, or an attribute of a namespace.
  bool is_plain() const { return !is<std::shared_ptr<Namespace>>() && !is<std::shared_ptr<const Loop>>(); }

  bool truth() const;
  // Booleans and whole numbers. TemplateError naming `what` otherwise.
  std::int64_t integer(std::string_view what) const;
  double number(std::string_view what) const;
  // TemplateError naming `what` unless it is a text.
  const std::string& text_of(std::string_view what) const;
  // As it is printed. TemplateError for lists and maps, which Python prints in a way of its own.
  std::string printed() const;
  // "a list", for messages.
  std::string_view kind() const;

 private:
  Any any_;
};

const Value* find(const Entries& entries, std::string_view key);
void put(Entries& entries, std::string_view key, Value value);

// As in Python: 1 == 1.0 == True, lists and maps by what they hold.
bool equal(const Value& a, const Value& b);
// Numbers and texts; TemplateError for anything else.
bool less(const Value& a, const Value& b);
// An item of a list, a part of a text, a key of a map.
bool contains(const Value& all, const Value& one);

// As Python's json.dumps writes it, `indent` < 0: on one line. TemplateError for what is no JSON.
std::string to_json(const Value& value, int indent);

// Characters of a text as Python counts them: the byte where the character `index` begins.
std::size_t byte_of(const std::string& text, std::size_t index);

}  // namespace computron::jinja
