#include "src/storage/result_line.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "computron/base/json.h"

namespace computron {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::string_view kStart = R"({"id":"batch_req_)";
constexpr std::string_view kNext = R"(","custom_id":)";

}  // namespace

std::optional<RequestId> line_of_result(std::string_view line) {
  if (!line.starts_with(kStart)) return std::nullopt;
  RequestId number = 0;
  const char* const end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + kStart.size(), end, number);
  if (error != std::errc() || !std::string_view(rest, end).starts_with(kNext)) return std::nullopt;
  if (!is_json(line)) return std::nullopt;
  return number;
}

FileLines::FileLines(ReadAt read_at, std::uint64_t begin, std::uint64_t end)
    : read_at_(std::move(read_at)), offset_(begin), end_(end) {}

std::optional<std::string_view> FileLines::next() {
  std::size_t searched = used_;
  for (;;) {
    const std::size_t newline = buffer_.find('\n', searched);
    if (newline != std::string::npos) {
      const std::string_view line = std::string_view(buffer_).substr(used_, newline + 1 - used_);
      used_ = newline + 1;
      offset_ += line.size();
      return line;
    }
    searched = buffer_.size() - used_;
    if (!read_more()) return std::nullopt;
  }
}

bool FileLines::read_more() {
  buffer_.erase(0, std::exchange(used_, 0));
  const std::uint64_t at = offset_ + buffer_.size();
  const std::string more = at < end_ ? read_at_(at, std::min<std::uint64_t>(kReadBytes, end_ - at)) : "";
  buffer_ += more;
  return !more.empty();
}

}  // namespace computron
