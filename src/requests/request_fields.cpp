#include "src/requests/request_fields.h"

#include <fmt/format.h>

#include "computron/base/json_text.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;

}  // namespace

void invalid_request(const std::string& message) { throw RequestError(400, "invalid_request", message); }
void invalid_parameter(const std::string& message) { throw RequestError(400, "invalid_parameter", message); }
void context_length_exceeded(const std::string& message) {
  throw RequestError(400, "context_length_exceeded", message);
}

const JsonValue& field(const JsonFields& fields, std::string_view name) {
  static const JsonValue kAbsent;  // null, which everywhere means the same as nothing
  const auto found = fields.find(name);
  return found == fields.end() ? kAbsent : found->second;
}

std::string describe(const JsonValue& value) {
  switch (value.kind) {
    case Kind::kBool:
      return value.boolean ? "true" : "false";
    case Kind::kInteger:
      return fmt::format("{}", value.integer);
    case Kind::kFloat:
      return fmt::format("{}", value.number);
    case Kind::kString:
      return shown(value.text);
    default:
      return std::string(name_of(value.kind));
  }
}

bool is_number(const JsonValue& value) { return value.kind == Kind::kInteger || value.kind == Kind::kFloat; }
double number_of(const JsonValue& value) {
  return value.kind == Kind::kInteger ? static_cast<double>(value.integer) : value.number;
}

const std::string& required_string(const JsonFields& fields, std::string_view prefix, std::string_view name) {
  const JsonValue& value = field(fields, name);
  if (value.kind == Kind::kNull) invalid_request(fmt::format("{}{}: missing", prefix, name));
  if (value.kind != Kind::kString) {
    invalid_request(fmt::format("{}{}: must be a string (got {})", prefix, name, describe(value)));
  }
  return value.text;
}

std::int64_t OptionalFields::integer(std::string_view name, std::int64_t low, std::int64_t high,
                                     std::int64_t fallback) const {
  const JsonValue& value = field(fields_, name);
  if (value.kind == Kind::kNull) return fallback;
  if (value.kind == Kind::kInteger && value.integer >= low && value.integer <= high) return value.integer;
  invalid_parameter(
      fmt::format("body.{}: must be an integer from {} to {} (got {})", name, low, high, describe(value)));
}

bool OptionalFields::flag(std::string_view name, bool fallback) const {
  const JsonValue& value = field(fields_, name);
  if (value.kind == Kind::kNull) return fallback;
  if (value.kind != Kind::kBool) {
    invalid_parameter(fmt::format("body.{}: must be true or false (got {})", name, describe(value)));
  }
  return value.boolean;
}

double OptionalFields::number(std::string_view name, double low, double high, double fallback) const {
  const JsonValue& value = field(fields_, name);
  if (value.kind == Kind::kNull) return fallback;
  if (is_number(value) && number_of(value) >= low && number_of(value) <= high) return number_of(value);
  invalid_parameter(fmt::format("body.{}: must be a number from {} to {} (got {})", name, low, high, describe(value)));
}

TokenId token_at(const JsonValue& list, std::size_t index, std::string_view path, const ServedModel& model) {
  const std::int64_t id = list.integer_at(index);
  if (id >= 0 && id < model.config.vocab) return static_cast<TokenId>(id);
  invalid_parameter(fmt::format("{}[{}]: token ids of {} are integers from 0 to {} (got {})", path, index, model.id,
                                model.config.vocab - 1, id));
}

std::vector<TokenId> token_list(const JsonValue& list, std::string_view path, const ServedModel& model) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.integers.size());
  for (std::size_t i = 0; i < list.integers.size(); ++i) tokens.push_back(token_at(list, i, path, model));
  return tokens;
}

void refuse_text(std::string_view path, const ServedModel& model) {
  const std::string why = model.tokenizer_fault.empty()
                              ? fmt::format("the checkpoint of {} carries no tokenizer", model.id)
                              : fmt::format("the tokenizer of {} cannot be used ({})", model.id, model.tokenizer_fault);
  invalid_request(fmt::format("{}: text is not accepted because {}; give a list of token ids", path, why));
}

}  // namespace computron
