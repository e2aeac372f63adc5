// Texts of unknown origin and size inside messages and JSON that this program writes.
#pragma once

#include <string>
#include <string_view>

namespace computron {

// `text`, if longer than `limit` bytes cut at a character's boundary and ended with "...".
std::string cut(std::string_view text, std::size_t limit = 80);
// The same in quotes.
std::string shown(std::string_view text);

// A JSON string literal. Bytes that are not UTF-8 become U+FFFD, so output is always valid.
std::string json_string(std::string_view text);

}  // namespace computron
