// Is a line of JSON made of Unicode text?
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace computron {

struct TextFault {
  std::size_t offset = 0;  // of the first byte at fault
  const char* what = "";
};

// The first ill-formed UTF-8 sequence, NUL (raw or as \u0000) or lone surrogate escape of a line of JSON.
std::optional<TextFault> find_text_fault(std::string_view line);

}  // namespace computron
