#include "computron/storage/shard.h"

#include <fmt/format.h>

#include <charconv>

#include "computron/base/error.h"

namespace computron {

std::string Shard::to_string() const { return fmt::format("{}/{}", index, count); }

Shard parse_shard(const std::string& text) {
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto [slash, bad_index] = std::from_chars(text.data(), end, shard.index);
  if (bad_index == std::errc() && slash != end && *slash == '/') {
    const auto [rest, bad_count] = std::from_chars(slash + 1, end, shard.count);
    if (bad_count == std::errc() && rest == end && shard.index < shard.count) return shard;
  }
  throw Error(ExitCode::kUsage, fmt::format("--shard: '{}' is not I/N with I from 0 to N - 1", text));
}

}  // namespace computron
