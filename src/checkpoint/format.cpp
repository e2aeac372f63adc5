#include "src/checkpoint/format.h"

#include <fmt/format.h>

#include <cctype>

namespace computron::format {
namespace {

bool is_name_character(unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; }

}  // namespace

std::optional<std::string> fault_of_name(std::string_view name) {
  if (name.empty()) return "empty name";
  if (name.size() > kMaxNameBytes) return fmt::format("name of {} bytes (limit {})", name.size(), kMaxNameBytes);
  if (name == "." || name == "..") return "reserved name";
  for (const unsigned char c : name) {
    if (!is_name_character(c)) return fmt::format("character 0x{:02x} in a name", c);
  }
  return std::nullopt;
}

std::size_t tensor_bytes(const std::vector<std::size_t>& shape, DType dtype, const Subject& subject) {
  if (shape.empty() || shape.size() > kMaxRank) {
    subject.fail(fmt::format("{} dimensions (1 to {} are allowed)", shape.size(), kMaxRank));
  }
  std::size_t bytes = size_of(dtype);
  for (const std::size_t extent : shape) {
    if (extent == 0) subject.fail("a dimension is zero");
    if (__builtin_mul_overflow(bytes, extent, &bytes)) subject.fail("size overflows");
  }
  return bytes;
}

}  // namespace computron::format
