// The fields of a request by name, and what is said of a wrong one: shared by the checks of all kinds of requests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "computron/requests/model_list.h"
#include "src/requests/request_draft.h"

namespace computron {

[[noreturn]] void invalid_request(const std::string& message);
[[noreturn]] void invalid_parameter(const std::string& message);
[[noreturn]] void context_length_exceeded(const std::string& message);

// null where there is none, which everywhere means the same.
const JsonValue& field(const JsonFields& fields, std::string_view name);
// A short text for messages: "5", "'abc'", "a list".
std::string describe(const JsonValue& value);
bool is_number(const JsonValue& value);
double number_of(const JsonValue& value);
// `prefix` ("body.") and `name` stand in the message.
const std::string& required_string(const JsonFields& fields, std::string_view prefix, std::string_view name);

// Fields of the body that may be left out. Throws RequestError{invalid_parameter} naming the field and its range.
class OptionalFields {
 public:
  explicit OptionalFields(const JsonFields& body) : fields_(body) {}
  std::int64_t integer(std::string_view name, std::int64_t low, std::int64_t high, std::int64_t fallback) const;
  bool flag(std::string_view name, bool fallback = false) const;
  double number(std::string_view name, double low, double high, double fallback) const;

 private:
  const JsonFields& fields_;
};

// The token id at `index` (JsonValue::integer_at) of the list at `path`, in the model's vocabulary.
TokenId token_at(const JsonValue& list, std::size_t index, std::string_view path, const ServedModel& model);
// The leading token ids of the list, all of them in the vocabulary.
std::vector<TokenId> token_list(const JsonValue& list, std::string_view path, const ServedModel& model);
[[noreturn]] void refuse_text(std::string_view path, const ServedModel& model);

}  // namespace computron
