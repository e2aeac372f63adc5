// What templates may call: Jinja2's filters and tests, methods of Python's texts and dicts, and the functions that
// transformers gives chat templates.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "src/text/template_value.h"

namespace computron::jinja {

// Bounds what rendering may cost, whatever the template: a part of a run's results must not depend on a clock.
class Work {
 public:
  // `bytes`: of the conversation.
  explicit Work(std::size_t bytes) : left_(kSteps + bytes) {}
  // Of one operation on as many items, or as many times 16 bytes of text. TemplateError once too much is done.
  void charge(std::size_t items = 1);
  void charge_text(std::size_t bytes) { charge(1 + bytes / 16); }

 private:
  static constexpr std::size_t kSteps = 2'000'000;
  std::size_t left_;
};

struct Arguments {
  List values;
  Entries named;

  // The argument at `position` or by its name; null if there is none.
  const Value* find(std::size_t position, std::string_view name = "") const;
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_method(std::string_view name);
bool is_function(std::string_view name);

// Of a known name. TemplateError naming what of their arguments does not fit.
Value filter(std::string_view name, const Value& value, const Arguments& arguments, Work& work);
bool test(std::string_view name, const Value& value, const Arguments& arguments);
Value call_method(std::string_view name, const Value& value, const Arguments& arguments, Work& work);
// But for raise_exception, which is the renderer's.
Value call_function(std::string_view name, const Arguments& arguments, std::chrono::year_month_day date, Work& work);

// A name or a number of a list, a map, a namespace or a loop; undefined where there is none. TemplateError of what is
// undefined itself.
Value attribute(const Value& value, std::string_view name);
Value item(const Value& value, const Value& index);
// What a filter's argument `attribute` leads to: an item by its number, or as in "user.tags.0"; none: to the value
// itself.
Value path_of(const Value& value, const Value& path);
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Work& work);
// The items that a loop goes over: of a map its keys, of a text its characters.
List items_of(const Value& value, Work& work);

// `a name b`, of the operators that are neither `and` nor `or`.
Value operate(std::string_view name, const Value& a, const Value& b, Work& work);

}  // namespace computron::jinja
