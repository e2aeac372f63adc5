// Text of other people's files in messages.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace computron {

// `text` as a part of one line: control characters and all beyond the first `longest` bytes are left out.
inline std::string printable(std::string_view text, std::size_t longest = 200) {
  std::string line;
  for (const unsigned char c : text.substr(0, longest)) {
    if (c < 0x20 || c == 0x7f) line += fmt::format("\\x{:02x}", c);
    if (c >= 0x20 && c != 0x7f) line += static_cast<char>(c);
  }
  if (text.size() > longest) line += fmt::format("... ({} bytes)", text.size());
  return line;
}

}  // namespace computron
