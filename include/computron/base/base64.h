// Base64 (RFC 4648, section 4): how numbers travel inside JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace computron {

std::string encode_base64(std::span<const std::byte> bytes);

// Nothing unless `text` is exactly what encode_base64() makes of some bytes: groups of four letters of the alphabet,
// padding at the end only, no line breaks, no bits beyond the last byte.
std::optional<std::vector<std::byte>> decode_base64(std::string_view text);

}  // namespace computron
