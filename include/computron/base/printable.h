// Text of other people's files in messages.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace computron {

// `text` as a part of one line: control characters and all beyond the first 200 bytes are left out.
inline std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  std::string line;
  for (const unsigned char c : text.substr(0, kLongest)) {
    if (c < 0x20 || c == 0x7f) line += fmt::format("\\x{:02x}", c);
    if (c >= 0x20 && c != 0x7f) line += static_cast<char>(c);
  }
  if (text.size() > kLongest) line += fmt::format("... ({} bytes)", text.size());
  return line;
}

}  // namespace computron
