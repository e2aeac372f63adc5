#include "src/text/template_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "computron/base/json_text.h"
#include "computron/base/utf8.h"
#include "src/text/template_sorting.h"
#include "src/text/template_text.h"

namespace computron::jinja {
namespace {

using namespace std::string_view_literals;

std::int64_t integer_or(const Value* value, std::int64_t fallback, std::string_view what) {
  return value == nullptr || value->is_none() ? fallback : value->integer(what);
}

std::int64_t length(const Value& value) {
  if (const std::string* text = value.text()) return static_cast<std::int64_t>(count_characters(*text));
  if (const ListBody* list = value.list()) return static_cast<std::int64_t>(list->items.size());
  if (const MapBody* map = value.map()) return static_cast<std::int64_t>(map->entries.size());
  if (value.is_undefined()) return 0;
  fail(fmt::format("{} has no length", value.kind()));
}

const std::string& text_argument(const Arguments& arguments, std::size_t position, std::string_view of,
                                 std::string_view name = "") {
  const Value* value = arguments.find(position, name);
  if (value == nullptr) fail(fmt::format("{}: an argument is missing", of));
  return value->text_of(of);
}

using Filter = Value (*)(const Value&, const Arguments&, Work&);

Value trim(const Value& value, const Arguments& arguments, Work&) {
  return stripped(value.printed(), "lr", arguments.find(0, "chars"));
}
Value joined(const Value& value, const Arguments& arguments, Work& work) {
  const Value* separator = arguments.find(0, "d");
  const Value* path = arguments.find(1, "attribute");
  std::string text;
  bool first = true;
  for (const Value& one : items_of(value, work)) {
    if (!first && separator != nullptr) text += separator->printed();
    text += (path == nullptr ? one : path_of(one, *path)).printed();
    first = false;
    work.charge_text(text.size() / 64);
  }
  return text;
}
Value defaulted(const Value& value, const Arguments& arguments, Work&) {
  const Value* fallback = arguments.find(0, "default_value");
  const Value* falsy = arguments.find(1, "boolean");
  const bool replaces = value.is_undefined() || (falsy != nullptr && falsy->truth() && !value.truth());
  if (!replaces) return value;
  return fallback == nullptr ? Value("") : *fallback;
}
Value json(const Value& value, const Arguments& arguments, Work& work) {
  for (const auto& [name, given] : arguments.named) {
    if (name != "indent" && name != "ensure_ascii") fail(fmt::format("tojson: its argument {}", shown(name)));
  }
  const std::int64_t indent = integer_or(arguments.find(1, "indent"), -1, "tojson");
  if (indent > 16) fail("tojson: an indent of more than 16");
  std::string text = to_json(value, static_cast<int>(indent));
  work.charge_text(text.size());
  return text;
}
std::int64_t absolute(std::int64_t number) {
  if (number == std::numeric_limits<std::int64_t>::min()) fail("a number of more than 64 bits");
  return std::abs(number);
}
Value first(const Value& value, const Arguments&, Work& work) {
  const List items = items_of(value, work);
  return items.empty() ? Value() : items.front();
}
Value last(const Value& value, const Arguments&, Work& work) {
  const List items = items_of(value, work);
  return items.empty() ? Value() : items.back();
}
Value reversed(const Value& value, const Arguments&, Work& work) {
  return slice(value, None{}, None{}, std::int64_t{-1}, work);
}
Value truncated(double number) {
  if (!(std::fabs(number) < 0x1p63)) fail("a number of more than 64 bits");
  return static_cast<std::int64_t>(number);
}
// Of a text that is no whole number what float() makes of it counts.
Value to_integer(const Value& value, const Arguments& arguments, Work&) {
  if (integer_or(arguments.find(1, "base"), 10, "int") != 10) fail("int: a base other than 10");
  const Value* given = arguments.find(0, "default");
  Value fallback = given == nullptr ? Value(std::int64_t{0}) : *given;
  if (value.is_undefined()) fail("int: something undefined");
  if (const double* number = value.get<double>()) return std::isnan(*number) ? fallback : truncated(*number);
  if (value.is_number()) return value.integer("int");
  if (value.text() == nullptr) return fallback;
  if (const auto whole = whole_number_in(*value.text())) return *whole;
  const std::optional<double> number = number_in(*value.text());
  return number && std::isfinite(*number) ? truncated(*number) : fallback;
}
Value to_float(const Value& value, const Arguments& arguments, Work&) {
  const Value* given = arguments.find(0, "default");
  if (value.is_undefined()) fail("float: something undefined");
  if (value.is_number()) return value.number("float");
  const std::optional<double> number = value.text() == nullptr ? std::nullopt : number_in(*value.text());
  return number ? Value(*number) : given == nullptr ? Value(0.0) : *given;
}
Value items_filter(const Value& value, const Arguments&, Work& work) {
  if (value.is_undefined()) return List();
  return call_method("items", value, {}, work);
}

Arguments behind(const Arguments& arguments, std::size_t count) {
  Arguments rest;
  for (std::size_t i = count; i < arguments.values.size(); ++i) rest.values.push_back(arguments.values[i]);
  return rest;
}
// Those items whose attribute (`by_path`), or that themselves, pass a test, or do not.
List selected(const Value& value, const Arguments& arguments, bool by_path, bool wanted, Work& work) {
  const std::string path = by_path ? text_argument(arguments, 0, "selectattr") : "";
  const std::size_t at = by_path ? 1 : 0;
  const std::string name = arguments.find(at) == nullptr ? "" : text_argument(arguments, at, "select");
  if (!name.empty() && !is_test(name)) fail(fmt::format("the test {}", shown(name)));
  const Arguments rest = behind(arguments, at + 1);
  List kept;
  for (const Value& one : items_of(value, work)) {
    const Value of = by_path ? path_of(one, Value(path)) : one;
    if ((name.empty() ? of.truth() : test(name, of, rest)) == wanted) kept.push_back(one);
  }
  return kept;
}
Value select(const Value& v, const Arguments& a, Work& work) { return selected(v, a, false, true, work); }
Value reject(const Value& v, const Arguments& a, Work& work) { return selected(v, a, false, false, work); }
Value select_by(const Value& v, const Arguments& a, Work& work) { return selected(v, a, true, true, work); }
Value reject_by(const Value& v, const Arguments& a, Work& work) { return selected(v, a, true, false, work); }

Value mapped_items(const Value& value, const Arguments& arguments, Work& work) {
  const Value* path = arguments.find(~std::size_t{0}, "attribute");
  const Value* fallback = arguments.find(~std::size_t{0}, "default");
  const std::string name = path == nullptr ? text_argument(arguments, 0, "map") : "";
  if (path == nullptr && !is_filter(name)) fail(fmt::format("the filter {}", shown(name)));
  const Arguments rest = behind(arguments, 1);
  List results;
  for (const Value& one : items_of(value, work)) {
    Value of = path == nullptr ? filter(name, one, rest, work) : path_of(one, *path);
    if (of.is_undefined() && fallback != nullptr) of = *fallback;
    results.push_back(std::move(of));
  }
  return results;
}

std::string indented(const Value& value, const Arguments& arguments, Work& work) {
  const Value* width = arguments.find(0, "width");
  const Value* first_too = arguments.find(1, "first");
  const std::int64_t spaces = integer_or(width, 4, "indent");
  if (spaces < 0 || spaces > 64) fail("indent: a width beyond 64");
  const std::string margin(static_cast<std::size_t>(spaces), ' ');
  std::string text = first_too != nullptr && first_too->truth() ? margin : "";
  bool begins = false;
  for (const char c : value.text_of("indent")) {
    if (begins && c != '\n') text += margin;
    begins = c == '\n';
    text += c;
  }
  work.charge_text(text.size() * 2);
  return text;
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> kFilters = {
      {"abs",
       [](const Value& v, const Arguments&, Work&) {
         return v.is<double>() ? Value(std::fabs(v.number("abs"))) : Value(absolute(v.integer("abs")));
       }},
      {"capitalize", [](const Value& v, const Arguments&, Work&) { return Value(capitalized(v.printed())); }},
      {"count", [](const Value& v, const Arguments&, Work&) { return Value(length(v)); }},
      {"d", defaulted},
      {"default", defaulted},
      {"dictsort", sorted_entries},
      {"first", first},
      {"float", to_float},
      {"indent", [](const Value& v, const Arguments& a, Work& w) { return Value(indented(v, a, w)); }},
      {"int", to_integer},
      {"items", items_filter},
      {"join", joined},
      {"last", last},
      {"length", [](const Value& v, const Arguments&, Work&) { return Value(length(v)); }},
      {"list", [](const Value& v, const Arguments&, Work& w) { return Value(items_of(v, w)); }},
      {"lower", [](const Value& v, const Arguments&, Work&) { return Value(lower(v.printed())); }},
      {"map", mapped_items},
      {"reject", reject},
      {"rejectattr", reject_by},
      {"replace",
       [](const Value& v, const Arguments& a, Work& w) { return call_method("replace", v.printed(), a, w); }},
      {"reverse", reversed},
      {"safe", [](const Value& v, const Arguments&, Work&) { return v; }},
      {"select", select},
      {"selectattr", select_by},
      {"sort", sorted},
      {"string", [](const Value& v, const Arguments&, Work&) { return Value(v.printed()); }},
      {"title", [](const Value& v, const Arguments&, Work&) { return Value(title_of_words(v.printed())); }},
      {"tojson", json},
      {"trim", trim},
      {"unique", unique},
      {"upper", [](const Value& v, const Arguments&, Work&) { return Value(upper(v.printed())); }}};
  return kFilters;
}

using Test = bool (*)(const Value&, const Arguments&);

const Value& other(const Arguments& arguments) {
  const Value* value = arguments.find(0);
  if (value == nullptr) fail("a test without its argument");
  return *value;
}
bool is_whole(const Value& value) { return value.is<std::int64_t>(); }
bool is_list_like(const Value& v) { return v.list() != nullptr || v.map() != nullptr || v.text() != nullptr; }
bool divides(const Value& value, std::int64_t by) {
  if (by == 0) fail("a division by zero");
  return value.integer("a test") % by == 0;
}

const std::map<std::string_view, Test>& tests() {
  static const std::map<std::string_view, Test> kTests = {
      {"==", [](const Value& v, const Arguments& a) { return equal(v, other(a)); }},
      {"boolean", [](const Value& v, const Arguments&) { return v.is<bool>(); }},
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"divisibleby", [](const Value& v, const Arguments& a) { return divides(v, other(a).integer("divisibleby")); }},
      {"eq", [](const Value& v, const Arguments& a) { return equal(v, other(a)); }},
      {"equalto", [](const Value& v, const Arguments& a) { return equal(v, other(a)); }},
      {"even", [](const Value& v, const Arguments&) { return divides(v, 2); }},
      {"false", [](const Value& v, const Arguments&) { return v.is<bool>() && !v.truth(); }},
      {"float", [](const Value& v, const Arguments&) { return v.is<double>(); }},
      {"ge", [](const Value& v, const Arguments& a) { return !less(v, other(a)); }},
      {"gt", [](const Value& v, const Arguments& a) { return less(other(a), v); }},
      {"in", [](const Value& v, const Arguments& a) { return contains(other(a), v); }},
      {"integer", [](const Value& v, const Arguments&) { return is_whole(v); }},
      {"iterable", [](const Value& v, const Arguments&) { return is_list_like(v) || v.is_undefined(); }},
      {"le", [](const Value& v, const Arguments& a) { return !less(other(a), v); }},
      {"lt", [](const Value& v, const Arguments& a) { return less(v, other(a)); }},
      {"mapping", [](const Value& v, const Arguments&) { return v.map() != nullptr; }},
      {"ne", [](const Value& v, const Arguments& a) { return !equal(v, other(a)); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"odd", [](const Value& v, const Arguments&) { return !divides(v, 2); }},
      {"sequence", [](const Value& v, const Arguments&) { return is_list_like(v) || v.is_undefined(); }},
      {"string", [](const Value& v, const Arguments&) { return v.text() != nullptr; }},
      {"true", [](const Value& v, const Arguments&) { return v.is<bool>() && v.truth(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }}};
  return kTests;
}

using Method = Value (*)(const std::string&, const Arguments&, Work&);

bool fits_any(const Arguments& arguments, std::string_view of, const std::function<bool(const std::string&)>& fits) {
  const Value* value = arguments.find(0);
  if (value != nullptr && value->list() != nullptr) {
    const List& all = value->list()->items;
    return std::any_of(all.begin(), all.end(), [&](const Value& one) { return fits(one.text_of(of)); });
  }
  return fits(text_argument(arguments, 0, of));
}
bool all_characters(const std::string& text, const CharacterTest& fits) {
  return !text.empty() && first_not(text, fits) == text.size();
}
std::int64_t place_of(const std::string& text, std::size_t byte) {
  return byte == text.npos ? -1 : static_cast<std::int64_t>(count_characters(std::string_view(text).substr(0, byte)));
}
Value split(const std::string& text, const Arguments& arguments, Work& work, bool from_end) {
  work.charge_text(text.size());
  const Value* separator = arguments.find(0, "sep");
  const std::int64_t most = integer_or(arguments.find(1, "maxsplit"), -1, "split");
  if (separator == nullptr || separator->is_none()) {
    if (from_end && most >= 0) fail("rsplit at white space");
    return split_at_space(text, most, work);
  }
  return (from_end ? split_at_last : split_at)(text, separator->text_of("split"), most, work);
}

const std::map<std::string_view, Method>& text_methods() {
  static const std::map<std::string_view, Method> kMethods = {
      {"capitalize", [](const std::string& t, const Arguments&, Work&) { return Value(capitalized(t)); }},
      {"count",
       [](const std::string& t, const Arguments& a, Work& w) {
         return Value(static_cast<std::int64_t>(split_at(t, text_argument(a, 0, "count"), -1, w).size()) - 1);
       }},
      {"endswith",
       [](const std::string& t, const Arguments& a, Work&) {
         return Value(fits_any(a, "endswith", [&t](const std::string& e) { return t.ends_with(e); }));
       }},
      {"find", [](const std::string& t, const Arguments& a,
                  Work&) { return Value(place_of(t, t.find(text_argument(a, 0, "find")))); }},
      {"isdigit", [](const std::string& t, const Arguments&, Work&) { return Value(all_characters(t, is_digit)); }},
      {"isspace", [](const std::string& t, const Arguments&, Work&) { return Value(all_characters(t, is_space)); }},
      {"join",
       [](const std::string& t, const Arguments& a, Work& w) {
         return a.find(0) == nullptr ? Value() : joined(*a.find(0), {.values = {Value(t)}, .named = {}}, w);
       }},
      {"lower", [](const std::string& t, const Arguments&, Work&) { return Value(lower(t)); }},
      {"lstrip", [](const std::string& t, const Arguments& a, Work&) { return Value(stripped(t, "l", a.find(0))); }},
      {"removeprefix",
       [](const std::string& t, const Arguments& a, Work&) {
         return Value(t.starts_with(text_argument(a, 0, "removeprefix")) ? t.substr(text_argument(a, 0, "").size())
                                                                         : t);
       }},
      {"removesuffix",
       [](const std::string& t, const Arguments& a, Work&) {
         return Value(t.ends_with(text_argument(a, 0, "removesuffix"))
                          ? t.substr(0, t.size() - text_argument(a, 0, "").size())
                          : t);
       }},
      {"replace",
       [](const std::string& t, const Arguments& a, Work& w) {
         return Value(replaced(t, text_argument(a, 0, "replace", "old"), text_argument(a, 1, "replace", "new"),
                               integer_or(a.find(2, "count"), -1, "replace"), w));
       }},
      {"rfind", [](const std::string& t, const Arguments& a,
                   Work&) { return Value(place_of(t, t.rfind(text_argument(a, 0, "rfind")))); }},
      {"rsplit", [](const std::string& t, const Arguments& a, Work& w) { return split(t, a, w, /*from_end=*/true); }},
      {"rstrip", [](const std::string& t, const Arguments& a, Work&) { return Value(stripped(t, "r", a.find(0))); }},
      {"split", [](const std::string& t, const Arguments& a, Work& w) { return split(t, a, w, /*from_end=*/false); }},
      {"splitlines",
       [](const std::string& t, const Arguments& a, Work& w) {
         return Value(lines_of(t, a.find(0, "keepends") != nullptr && a.find(0, "keepends")->truth(), w));
       }},
      {"startswith",
       [](const std::string& t, const Arguments& a, Work&) {
         return Value(fits_any(a, "startswith", [&t](const std::string& b) { return t.starts_with(b); }));
       }},
      {"strip", [](const std::string& t, const Arguments& a, Work&) { return Value(stripped(t, "lr", a.find(0))); }},
      {"title", [](const std::string& t, const Arguments&, Work&) { return Value(title(t)); }},
      {"upper", [](const std::string& t, const Arguments&, Work&) { return Value(upper(t)); }}};
  return kMethods;
}

constexpr std::array kMapMethods = {"get"sv, "items"sv, "keys"sv, "values"sv};

Value map_method(std::string_view name, const Entries& entries, const Arguments& arguments, Work& work) {
  work.charge(entries.size());
  if (name == "get") {
    const Value* found = find(entries, text_argument(arguments, 0, "get", "key"));
    const Value* fallback = arguments.find(1, "default");
    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
  }
  List list;
  for (const auto& [key, value] : entries) {
    if (name == "items") list.emplace_back(List{Value(key), value});
    if (name == "keys") list.emplace_back(key);
    if (name == "values") list.push_back(value);
  }
  return list;
}

constexpr std::array kFunctions = {"dict"sv, "namespace"sv, "raise_exception"sv, "range"sv, "strftime_now"sv};

constexpr std::array kMonths = {"January"sv, "February"sv, "March"sv,     "April"sv,   "May"sv,      "June"sv,
                                "July"sv,    "August"sv,   "September"sv, "October"sv, "November"sv, "December"sv};
constexpr std::array kDays = {"Sunday"sv,   "Monday"sv, "Tuesday"sv, "Wednesday"sv,
                              "Thursday"sv, "Friday"sv, "Saturday"sv};

// One of strftime's letters in the C locale, at midnight.
std::string date_part(char letter, std::chrono::year_month_day date) {
  const int year = static_cast<int>(date.year());
  const unsigned month = static_cast<unsigned>(date.month()), day = static_cast<unsigned>(date.day());
  const std::string_view month_name = kMonths.at(month - 1);
  const std::string_view day_name = kDays.at(std::chrono::weekday(std::chrono::sys_days(date)).c_encoding());
  switch (letter) {
    case 'Y':
      return fmt::format("{}", year);
    case 'y':
      return fmt::format("{:02}", year % 100);
    case 'm':
      return fmt::format("{:02}", month);
    case 'd':
      return fmt::format("{:02}", day);
    case 'B':
      return std::string(month_name);
    case 'b':
      return std::string(month_name.substr(0, 3));
    case 'A':
      return std::string(day_name);
    case 'a':
      return std::string(day_name.substr(0, 3));
    case 'H':
    case 'M':
    case 'S':
      return "00";
    case '%':
      return "%";
    default:
      fail(fmt::format("strftime_now: '%{}'", letter));
  }
}

std::string formatted_date(std::string_view format, std::chrono::year_month_day date) {
  std::string text;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
    } else if (++i < format.size()) {
      text += date_part(format[i], date);
    }
  }
  return text;
}

List range(const Arguments& arguments, Work& work) {
  constexpr std::int64_t kMost = 100'000;  // as in Jinja2's sandbox
  const std::size_t count = arguments.values.size();
  if (count == 0) fail("range: an argument is missing");
  const std::int64_t begin = count > 1 ? arguments.values[0].integer("range") : 0;
  const std::int64_t end = arguments.values[count > 1 ? 1 : 0].integer("range");
  const std::int64_t step = count > 2 ? arguments.values[2].integer("range") : 1;
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  if (step == 0) fail("range: a step of zero");
  for (const std::int64_t bound : {begin, end, step}) {
    if (bound < -kFar || bound > kFar) fail("range: a number that is too large");
  }
  List numbers;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    if (static_cast<std::int64_t>(numbers.size()) == kMost) fail(fmt::format("range: more than {} numbers", kMost));
    work.charge();
    numbers.emplace_back(i);
  }
  return numbers;
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index), count = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == count;
  if (name == "length") return count;
  if (name == "previtem") return index == 0 ? Value() : loop.items[loop.index - 1];
  if (name == "nextitem") return index + 1 == count ? Value() : loop.items[loop.index + 1];
  fail(fmt::format("loop.{}", name));
}

// Python's slice.indices(count): where to begin, and how many.
struct Range {
  std::int64_t begin = 0, count = 0;
};
Range range_of(std::int64_t size, const Value& begin, const Value& end, std::int64_t step) {
  const auto bound = [&](const Value& value, std::int64_t absent) {
    if (value.is_none()) return absent;
    std::int64_t at = value.integer("a slice");
    if (at < 0) at = std::max<std::int64_t>(at, -size - 1) + size;
    return step > 0 ? std::clamp<std::int64_t>(at, 0, size) : std::clamp<std::int64_t>(at, -1, size - 1);
  };
  const std::int64_t from = bound(begin, step > 0 ? 0 : size - 1), to = bound(end, step > 0 ? size : -1);
  const std::int64_t span = step > 0 ? to - from : from - to;
  return {from, span <= 0 ? 0 : (span + std::abs(step) - 1) / std::abs(step)};
}

Value repeated(const std::string& text, std::int64_t times, Work& work) {
  std::string result;
  for (; times > 0; --times) {
    work.charge_text(text.size());
    result += text;
  }
  return result;
}

std::int64_t floored(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

Value whole_number(std::string_view name, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if ((name == "+" && __builtin_add_overflow(a, b, &result)) ||
      (name == "-" && __builtin_sub_overflow(a, b, &result)) ||
      (name == "*" && __builtin_mul_overflow(a, b, &result))) {
    fail("a number of more than 64 bits");
  }
  if (name == "+" || name == "-" || name == "*") return result;
  if (b == 0) fail("a division by zero");
  if (b == -1) return whole_number("*", a, name == "%" ? 0 : -1);
  return name == "//" ? floored(a, b) : a - floored(a, b) * b;
}

Value sum_of(const Value& a, const Value& b, Work& work) {
  if (a.text() != nullptr && b.text() != nullptr) {
    work.charge_text(a.text()->size() + b.text()->size());
    return *a.text() + *b.text();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    work.charge(a.list()->items.size() + b.list()->items.size());
    List all = a.list()->items;
    all.insert(all.end(), b.list()->items.begin(), b.list()->items.end());
    return all;
  }
  fail(fmt::format("{} + {}", a.kind(), b.kind()));
}

}  // namespace

void Work::charge(std::size_t items) {
  if (items > left_) fail("it takes too many steps for this conversation");
  left_ -= items;
}

const Value* Arguments::find(std::size_t position, std::string_view name) const {
  if (position < values.size()) return &values[position];
  return name.empty() ? nullptr : jinja::find(named, name);
}

bool is_filter(std::string_view name) { return filters().contains(name); }
bool is_test(std::string_view name) { return tests().contains(name); }
bool is_method(std::string_view name) {
  return text_methods().contains(name) || std::find(kMapMethods.begin(), kMapMethods.end(), name) != kMapMethods.end();
}
bool is_function(std::string_view name) {
  return std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end();
}

Value filter(std::string_view name, const Value& value, const Arguments& arguments, Work& work) {
  work.charge_text(value.text() == nullptr ? 0 : value.text()->size());
  return filters().at(name)(value, arguments, work);
}

bool test(std::string_view name, const Value& value, const Arguments& arguments) {
  return tests().at(name)(value, arguments);
}

Value call_method(std::string_view name, const Value& value, const Arguments& arguments, Work& work) {
  if (const std::string* text = value.text()) {
    work.charge_text(text->size());
    const auto found = text_methods().find(name);
    if (found != text_methods().end()) return found->second(*text, arguments, work);
  }
  const bool of_map = std::find(kMapMethods.begin(), kMapMethods.end(), name) != kMapMethods.end();
  if (value.map() != nullptr && of_map) return map_method(name, value.map()->entries, arguments, work);
  fail(fmt::format("{} has no method {}", value.kind(), shown(name)));
}

Value call_function(std::string_view name, const Arguments& arguments, std::chrono::year_month_day date, Work& work) {
  if (name == "range") return range(arguments, work);
  if (name == "strftime_now") return formatted_date(text_argument(arguments, 0, "strftime_now", "format"), date);
  if (!arguments.values.empty()) fail(fmt::format("{}: an argument without a name", name));
  if (name == "dict") return arguments.named;
  auto names = std::make_shared<Namespace>();
  for (const auto& [key, value] : arguments.named) {
    if (!value.is_plain()) fail(fmt::format("{} in a namespace", value.kind()));
    names->entries.emplace_back(key, value);
  }
  return names;
}

Value attribute(const Value& value, std::string_view name) {
  if (const MapBody* map = value.map()) {
    const Value* found = find(map->entries, name);
    return found == nullptr ? Value() : *found;
  }
  if (const auto* names = value.get<std::shared_ptr<Namespace>>()) {
    const Value* found = find((*names)->entries, name);
    return found == nullptr ? Value() : *found;
  }
  if (const auto* loop = value.get<std::shared_ptr<const Loop>>()) return loop_attribute(**loop, name);
  if (value.is_undefined()) fail(fmt::format("{} of something undefined", shown(fmt::format(".{}", name))));
  return {};
}

Value item(const Value& value, const Value& index) {
  if (index.text() != nullptr) return attribute(value, *index.text());
  if (value.is_undefined()) fail("an item of something undefined");
  if (!index.is<std::int64_t>()) return {};
  const std::int64_t size = value.list() != nullptr || value.text() != nullptr ? length(value) : 0;
  const std::int64_t at = index.integer("an index") + (index.integer("an index") < 0 ? size : 0);
  if (at < 0 || at >= size) return {};
  if (const ListBody* list = value.list()) return list->items[static_cast<std::size_t>(at)];
  const std::string& text = *value.text();
  const std::size_t begin = byte_of(text, static_cast<std::size_t>(at));
  std::size_t end = begin;
  next_character(text, end);
  return text.substr(begin, end - begin);
}

Value path_of(const Value& value, const Value& path) {
  if (path.is_none()) return value;
  if (path.text() == nullptr) return item(value, path);
  Value found = value;
  for (std::string_view names = *path.text(); !names.empty();) {
    const std::size_t dot = names.find('.');
    const std::string_view name = names.substr(0, dot);
    const auto number = name.find_first_not_of("0123456789") == name.npos ? whole_number_in(name) : std::nullopt;
    found = number ? item(found, *number) : attribute(found, name);
    names = dot == names.npos ? ""sv : names.substr(dot + 1);
  }
  return found;
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Work& work) {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;  // beyond any list
  const std::int64_t stride = step.is_none() ? 1 : std::clamp(step.integer("a slice"), -kFar, kFar);
  if (stride == 0) fail("a slice with a step of zero");
  if (value.is_undefined()) fail("a slice of something undefined");
  if (value.list() == nullptr && value.text() == nullptr) return {};
  const Range range = range_of(length(value), begin, end, stride);
  if (const std::string* text = value.text(); text != nullptr && stride == 1) {
    work.charge_text(text->size());
    const std::size_t from = byte_of(*text, static_cast<std::size_t>(range.begin));
    const std::string rest = text->substr(from);
    return rest.substr(0, byte_of(rest, static_cast<std::size_t>(range.count)));
  }
  const List items = items_of(value, work);
  List taken;
  for (std::int64_t i = 0; i < range.count; ++i) {
    taken.push_back(items[static_cast<std::size_t>(range.begin + i * stride)]);
  }
  if (value.list() != nullptr) return taken;
  return joined(Value(std::move(taken)), {}, work);
}

List items_of(const Value& value, Work& work) {
  List items;
  if (const ListBody* list = value.list()) {
    items = list->items;
  } else if (const MapBody* map = value.map()) {
    for (const auto& [key, entry] : map->entries) items.emplace_back(key);
  } else if (const std::string* text = value.text()) {
    work.charge(text->size());
    for_each_character(*text, [&items](char32_t c) {
      std::string one;
      append_character(one, c);
      items.emplace_back(std::move(one));
    });
  } else if (!value.is_undefined()) {
    fail(fmt::format("a loop over {}", value.kind()));
  }
  work.charge(items.size());
  return items;
}

Value operate(std::string_view name, const Value& a, const Value& b, Work& work) {
  if (name == "~") return sum_of(a.printed(), b.printed(), work);
  if (name == "*" && a.text() != nullptr) return repeated(*a.text(), b.integer("*"), work);
  if (!a.is_number() || !b.is_number()) {
    if (name == "+") return sum_of(a, b, work);
    fail(fmt::format("{} {} {}", a.kind(), name, b.kind()));
  }
  if (!a.is<double>() && !b.is<double>() && name != "/") return whole_number(name, a.integer(""), b.integer(""));
  const double x = a.number(""), y = b.number("");
  if (name == "+") return x + y;
  if (name == "-") return x - y;
  if (name == "*") return x * y;
  if (y == 0) fail("a division by zero");
  if (name == "/") return x / y;
  return name == "//" ? std::floor(x / y) : x - std::floor(x / y) * y;
}

}  // namespace computron::jinja
