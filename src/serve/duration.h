// Times as a progress line tells them.
#pragma once

#include <fmt/format.h>

#include <string>

namespace computron {

// 93.4 → "1:33", 7300 → "2:01:40".
inline std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace computron
