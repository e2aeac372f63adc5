#include "computron/checkpoint/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "computron/base/digest.h"
#include "src/checkpoint/file.h"

namespace computron {
namespace {

constexpr std::size_t kEndBytes = 64 << 10;

}  // namespace

std::string file_fingerprint(const std::string& path) {
  const FileDescriptor fd = open_input(path);
  const std::size_t bytes = file_bytes(fd.get(), path);
  std::vector<std::byte> ends(2 * kEndBytes);
  const auto both = std::span(ends);
  read_at(fd.get(), 0, both.first(kEndBytes), path);
  read_at(fd.get(), bytes - std::min(bytes, kEndBytes), both.last(kEndBytes), path);
  return fmt::format("{} bytes, {}", bytes, to_hex(digest128(ends)));
}

}  // namespace computron
