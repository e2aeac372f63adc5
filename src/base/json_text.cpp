#include "computron/base/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace computron {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string cut(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  while (limit > 0 && continues_character(text[limit])) --limit;
  return fmt::format("{}...", text.substr(0, limit));
}

std::string shown(std::string_view text) { return fmt::format("'{}'", cut(text)); }

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace computron
