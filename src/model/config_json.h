// Typed access to the keys of a JSON object that came from outside; every failure names the key and its value.
// Private to src/model.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "computron/base/error.h"
#include "computron/base/json.h"

namespace computron {

// Copying and printing a document recurses, so one of a million brackets must not come to be.
inline nlohmann::json parse_json_object(const std::string& text, const char* what = "model configuration") {
  static constexpr int kMaxDepth = 64;
  nlohmann::json json;
  const auto fault = parse_json(text, {.depth = kMaxDepth}, json);
  if (fault && fault->kind == JsonFault::Kind::kTooDeep) {
    throw ConfigError(fmt::format("model configuration: nested deeper than {}", kMaxDepth));
  }
  if (fault || !json.is_object()) throw ConfigError(std::string(what) + " is not a JSON object");
  return json;
}

[[noreturn]] inline void fail_value(const std::string& key, const nlohmann::json& value, const char* wanted) {
  const auto text = value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  throw ConfigError(fmt::format("model configuration: '{}' is {}, expected {}", key, text.substr(0, 100), wanted));
}

inline void read_value(const std::string& key, const nlohmann::json& value, int& out) {
  constexpr std::int64_t kLargest = std::numeric_limits<int>::max();
  const bool exact = value.is_number_integer() &&
                     (value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargest)
                                                 : value.get<std::int64_t>() >= -kLargest);
  if (!exact) fail_value(key, value, "an integer of 32 bits");
  out = value.get<int>();
}

inline void read_value(const std::string& key, const nlohmann::json& value, bool& out) {
  if (!value.is_boolean()) fail_value(key, value, "true or false");
  out = value.get<bool>();
}

inline void read_value(const std::string& key, const nlohmann::json& value, float& out) {
  if (!value.is_number()) fail_value(key, value, "a number");
  out = value.get<float>();
}

inline void read_value(const std::string& key, const nlohmann::json& value, std::string& out) {
  if (!value.is_string()) fail_value(key, value, "a string");
  out = value.get<std::string>();
}

template <class Element>
void read_value(const std::string& key, const nlohmann::json& value, std::vector<Element>& out) {
  if (!value.is_array()) fail_value(key, value, "a list");
  out.clear();
  for (const auto& element : value) read_value(key, element, out.emplace_back());
}

}  // namespace computron
