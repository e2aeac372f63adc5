#include "computron/base/json.h"

#include <istream>
#include <nlohmann/json.hpp>
#include <utility>

namespace computron {
namespace {

using nlohmann::json;

// nlohmann's events as ours.
class Forward {
 public:
  explicit Forward(JsonEvents& events) : events_(events) {}

  bool null() { return events_.null(), true; }
  bool boolean(bool value) { return events_.boolean(value), true; }
  bool number_integer(std::int64_t value) { return events_.negative(value), true; }
  bool number_unsigned(std::uint64_t value) { return events_.integer(value), true; }
  bool number_float(double value, const std::string&) { return events_.number(value), true; }
  bool string(std::string& text) { return events_.string(text), true; }
  bool binary(json::binary_t&) { return true; }  // JSON text has none
  bool start_object(std::size_t) { return events_.begin_object(), true; }
  bool key(std::string& name) { return events_.key(name), true; }
  bool end_object() { return events_.end_object(), true; }
  bool start_array(std::size_t) { return events_.begin_list(), true; }
  bool end_array() { return events_.end_list(), true; }
  bool parse_error(std::size_t position, const std::string& token, const json::exception& error) {
    fault = {.kind = kind_of(error), .position = position, .token = token, .message = error.what()};
    return false;
  }

  static JsonFault::Kind kind_of(const json::exception& error) {
    constexpr int kNumberOverflow = 406;
    return error.id == kNumberOverflow ? JsonFault::Kind::kNumberTooLarge : JsonFault::Kind::kSyntax;
  }

  std::optional<JsonFault> fault;

 private:
  JsonEvents& events_;
};

template <class Input>
std::optional<JsonFault> read(Input& text, JsonEvents& events) {
  Forward forward(events);
  json::sax_parse(text, &forward);
  return std::move(forward.fault);
}

// Thrown out of the parser, and no further than parse().
struct LimitReached {
  JsonFault::Kind kind;
};

std::size_t position_of(const json::exception& error) {
  const auto* const where = dynamic_cast<const json::parse_error*>(&error);
  return where != nullptr ? where->byte : 0;
}

template <class Document>
std::optional<JsonFault> parse(std::string_view text, const JsonLimits& limits, Document& value) try {
  std::size_t values = 0;
  const auto watch = [&](int depth, typename Document::parse_event_t, Document&) {
    if (depth > limits.depth) throw LimitReached{JsonFault::Kind::kTooDeep};
    if (++values > limits.values) throw LimitReached{JsonFault::Kind::kTooManyValues};
    return true;
  };
  // Where each value is shown to somebody, a list takes the square of its objects.
  const bool limited = limits.depth < JsonLimits().depth || limits.values < JsonLimits().values;
  value = limited ? Document::parse(text.begin(), text.end(), watch) : Document::parse(text.begin(), text.end());
  return std::nullopt;
} catch (const json::exception& error) {
  return JsonFault{.kind = Forward::kind_of(error), .position = position_of(error), .message = error.what()};
} catch (const LimitReached& reached) {
  return JsonFault{.kind = reached.kind};
}

}  // namespace

std::optional<JsonFault> read_json(std::string_view text, JsonEvents& events) { return read(text, events); }
std::optional<JsonFault> read_json(std::istream& text, JsonEvents& events) { return read(text, events); }

std::optional<JsonFault> parse_json(std::string_view text, const JsonLimits& limits, nlohmann::json& value) {
  return parse(text, limits, value);
}

std::optional<JsonFault> parse_json(std::string_view text, const JsonLimits& limits, nlohmann::ordered_json& value) {
  return parse(text, limits, value);
}

bool is_json(std::string_view text) { return json::accept(text); }

}  // namespace computron
