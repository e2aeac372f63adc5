// The one parser of JSON. Texts come from anywhere: a fault is returned, not thrown, and whoever asked says in its own
// words which file is at fault. src/base/json.cpp alone compiles the parser beneath, nlohmann's, whose words for what
// is no JSON stand in the fault. It never recurses, and refuses what is not UTF-8.
//
//   read_json     event by event, in memory that does not grow with the text: large files, and where a key that
//                 stands twice must be noticed
//   parse_json    as a document, within limits; of keys that stand twice the last counts
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace computron {

// Why a text is refused.
struct JsonFault {
  enum class Kind { kSyntax, kNumberTooLarge, kTooDeep, kTooManyValues };
  Kind kind = Kind::kSyntax;
  std::size_t position = 0;  // kSyntax, kNumberTooLarge: bytes read, the one at fault included
  std::string token{};       // and what was read last
  std::string message{};     // of the parser
};

// Receives a text's events; those that are not overridden are passed over. A receiver that wants no more throws: the
// parser loses nothing by it.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() {}
  virtual void boolean(bool) {}
  virtual void negative(std::int64_t) {}  // a negative integer
  virtual void integer(std::uint64_t) {}  // any other
  virtual void number(double) {}          // with a fraction or an exponent, or an integer of more than 64 bits
  virtual void string(std::string&) {}    // may be moved from
  virtual void begin_object() {}
  virtual void key(std::string&) {}  // may be moved from
  virtual void end_object() {}
  virtual void begin_list() {}
  virtual void end_list() {}
};

// The fault comes behind the events of what precedes it. A zero byte counts as the end of the text.
[[nodiscard]] std::optional<JsonFault> read_json(std::string_view text, JsonEvents& events);
[[nodiscard]] std::optional<JsonFault> read_json(std::istream& text, JsonEvents& events);

struct JsonLimits {
  int depth = std::numeric_limits<int>::max();                   // of values in values; 0: of the whole
  std::size_t values = std::numeric_limits<std::size_t>::max();  // keys and ends of lists and objects count, too
};

// `value` is the document if there is no fault. An ordered one keeps the keys as they stand in the text.
[[nodiscard]] std::optional<JsonFault> parse_json(std::string_view text, const JsonLimits& limits,
                                                  nlohmann::json& value);
[[nodiscard]] std::optional<JsonFault> parse_json(std::string_view text, const JsonLimits& limits,
                                                  nlohmann::ordered_json& value);

bool is_json(std::string_view text);

}  // namespace computron
