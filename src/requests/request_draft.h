// The first half of parsing a line: JSON of any origin into plain values by field, with its form checked and its
// memory bounded by the line's. What the fields mean is request_check.h's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "computron/requests/request_reader.h"

namespace computron {

struct JsonValue {
  enum class Kind { kNull, kBool, kInteger, kFloat, kString, kList, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;  // kInteger: any number with an integral value, however it was written
  double number = 0;         // kFloat: finite
  std::string text{};        // kString

  // kList and kObject keep their size and of a list the leading integers, up to ParseBounds::max_list.
  std::size_t count = 0;
  std::vector<std::int64_t> integers{};
  // kList, of integers alone: those behind the leading ones, the last ParseBounds::max_list of them; only of the body's
  // "input" and "token_type_ids". Item i of the list is at i % max_list: integer_at() finds it.
  std::vector<std::int64_t> last_integers{};
  // kList: the first item that is not an integer, and what it is.
  bool has_odd_item = false;
  std::size_t odd_index = 0;
  Kind odd_kind = Kind::kNull;
  // Items that are lists themselves, up to ParseBounds::max_lists; only of the body's "prompt", "input" and
  // "token_type_ids".
  std::vector<JsonValue> lists{};
  // Items that are strings; only of the body's "prompt", "input" and "stop", and of the texts that are scored.
  std::vector<std::string> strings{};
  std::string json{};  // kList and kObject: the whole of it; only of the body's fields that guide answers

  // Item `index` of a list of integers alone, if that is among those that are kept.
  std::int64_t integer_at(std::size_t index) const {
    return index < integers.size() ? integers[index] : last_integers[index % integers.size()];
  }
};

// "null", "a boolean", ...
std::string_view name_of(JsonValue::Kind kind);

using JsonFields = std::map<std::string, JsonValue, std::less<>>;

// Fields of the body that say what an answer is to be.
inline constexpr std::string_view kGuideFields[] = {"guided_choice", "guided_json", "guided_regex", "response_format",
                                                    "structured_outputs"};

struct RequestDraft {
  JsonFields top;                 // the line's own fields
  JsonFields body;                // the fields of its "body", if that is an object
  JsonFields image;               // the fields of the body's "image", if that is an object
  JsonFields logit_bias;          // of the body's "logit_bias"
  JsonFields template_arguments;  // of the body's "chat_template_kwargs"
  // The objects in lists of the body, up to ParseBounds::max_lists of each.
  std::vector<JsonFields> messages;
  std::vector<JsonFields> documents;
  // The objects in messages' contents and whose they are, in their order, up to ParseBounds::max_lists in all.
  std::vector<std::pair<std::size_t, JsonFields>> parts;
};

struct ParseBounds {
  int max_depth = 64;
  std::size_t max_list = 0;   // integers at each end of one list that are kept; further ones are counted
  std::size_t max_lists = 0;  // of one list of lists
};

// Throws RequestError: invalid_utf8, invalid_json (with the byte column, 1-based), too_deep, duplicate_key,
// invalid_parameter (a number that no double holds), invalid_request (not an object, too many keys). Never recurses.
RequestDraft read_draft(RequestId line_number, std::string_view line, const ParseBounds& bounds);

}  // namespace computron
