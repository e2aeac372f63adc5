// Lists in messages. fmt::join is not used because g++ 12 warns (wrongly) inside it at -O3.
#pragma once

#include <fmt/format.h>

#include <string>

namespace computron {

// The elements as text with `separator` between them.
template <class Range>
std::string join(const Range& range, const char* separator) {
  std::string text;
  for (const auto& element : range) {
    if (!text.empty()) text += separator;
    text += fmt::format("{}", element);
  }
  return text;
}

}  // namespace computron
