#include "src/text/json_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/printable.h"

namespace computron {
namespace {

const Json kNull;

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  Json value;
  const auto fault = parse_json(text, {.depth = kMaxJsonDepth, .values = kMaxJsonValues}, value);
  if (!fault) return value;
  if (fault->kind == JsonFault::Kind::kTooDeep) {
    throw CheckpointError(fmt::format("{}: nested deeper than {}", file, kMaxJsonDepth));
  }
  if (fault->kind == JsonFault::Kind::kTooManyValues) {
    throw CheckpointError(fmt::format("{}: more than {} values", file, kMaxJsonValues));
  }
  throw CheckpointError(fmt::format("{}: {}", file, printable(fault->message)));
}

bool JsonAt::is_null() const { return value_->is_null(); }
bool JsonAt::is_zero() const { return value_->is_number() && value_->get<double>() == 0; }
bool JsonAt::is_list() const { return value_->is_array(); }

JsonAt JsonAt::operator[](const char* key) const {
  if (!value_->is_object()) fail("must be an object");
  const auto found = value_->find(key);
  return {found == value_->end() ? kNull : *found, fmt::format("{}{}{}", path_, path_.ends_with(' ') ? "" : ".", key)};
}

JsonAt JsonAt::item(std::size_t index) const { return {value_->at(index), fmt::format("{}[{}]", path_, index)}; }

std::size_t JsonAt::list_size() const {
  if (!value_->is_array()) fail("must be a list");
  return value_->size();
}

std::size_t JsonAt::list_size(std::size_t most) const {
  if (list_size() > most) fail(fmt::format("{} items (limit {})", list_size(), most));
  return list_size();
}

std::string JsonAt::string() const {
  if (!value_->is_string()) fail("must be a string");
  return value_->get<std::string>();
}

bool JsonAt::boolean() const {
  if (!value_->is_boolean()) fail("must be true or false");
  return value_->get<bool>();
}

std::int64_t JsonAt::integer(std::int64_t low, std::int64_t high) const {
  const bool fits =
      value_->is_number_integer() &&
      (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  const std::int64_t number = fits ? value_->get<std::int64_t>() : low - 1;
  if (!fits || number < low || number > high) fail(fmt::format("must be an integer from {} to {}", low, high));
  return number;
}

double JsonAt::number() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) fail("must be a number");
  return value_->get<double>();
}

void JsonAt::fail(const std::string& why) const { throw CheckpointError(fmt::format("{}: {}", path_, why)); }

}  // namespace computron
