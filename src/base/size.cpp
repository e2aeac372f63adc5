#include "computron/base/size.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "computron/base/error.h"

namespace computron {
namespace {

// Multiplier of a suffix; 0 for an unknown one. One letter alone is binary, as in Slurm and ulimit.
double multiplier_of(std::string_view suffix) {
  static constexpr std::pair<std::string_view, double> kSuffixes[] = {
      {"", 1},       {"B", 1},        {"k", 1024.0},   {"K", 1024.0},   {"M", 0x1p20},   {"G", 0x1p30},
      {"T", 0x1p40}, {"KiB", 1024.0}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},
      {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  for (const auto& [name, value] : kSuffixes) {
    if (suffix == name) return value;
  }
  return 0;
}

}  // namespace

std::size_t parse_size(std::string_view text) {
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const double multiplier = multiplier_of(text.substr(end - text.data()));
  const double bytes = number * multiplier;
  if (status != std::errc() || multiplier == 0 || !(bytes >= 0) || bytes >= 0x1p62) {
    throw Error(ExitCode::kUsage, fmt::format("'{}' is not a size (examples: 512MiB, 2GiB, 1.5GB)", text));
  }
  return static_cast<std::size_t>(std::llround(bytes));
}

std::string format_size(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace computron
