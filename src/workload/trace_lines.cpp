#include "src/workload/trace_lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "computron/base/error.h"
#include "computron/base/json_text.h"

namespace computron {

TraceLines::TraceLines(std::string file) : file_(std::move(file)), stream_(file_, std::ios::binary) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(file_, ignored);
  if (stream_ && !folder) return;
  const char* why = folder ? "it is a folder" : std::strerror(errno);
  throw Error(ExitCode::kNoInput, fmt::format("cannot read the trace '{}': {}", file_, why));
}

bool TraceLines::next() {
  while (std::getline(stream_, line_)) {
    ++number_;
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (!line_.empty()) return true;
  }
  if (stream_.bad()) throw Error(ExitCode::kNoInput, fmt::format("cannot read the trace '{}'", file_));
  return false;
}

const std::vector<std::string_view>& TraceLines::fields(std::size_t fewest) {
  fields_.clear();
  for (std::string_view rest = line_;;) {
    const std::size_t comma = rest.find(',');
    fields_.push_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (fields_.size() < fewest) refuse(fmt::format("{} columns, expected {}", fields_.size(), fewest));
  return fields_;
}

double TraceLines::number(std::string_view text) const {
  double value = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, value) != std::from_chars_result{end, std::errc()} || !std::isfinite(value)) {
    refuse(fmt::format("{} is no number", shown(text)));
  }
  return value;
}

std::uint32_t TraceLines::count(std::string_view text) const {
  const double value = number(text);
  if (value < 0 || value > 4e9 || value != std::floor(value)) refuse(fmt::format("{} is no count", shown(text)));
  return static_cast<std::uint32_t>(value);
}

void TraceLines::refuse(const std::string& why) const {
  throw Error(ExitCode::kData, fmt::format("trace '{}', line {}: {}", file_, number_, why));
}

}  // namespace computron
