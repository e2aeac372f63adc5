#include "computron/base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace computron {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNone = 0xff;

constexpr std::array<std::uint8_t, 256> values_of_letters() {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNone);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<std::uint8_t>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return values;
}

constexpr std::array<std::uint8_t, 256> kValues = values_of_letters();

std::size_t padding_of(std::string_view text) { return text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0; }

}  // namespace

std::string encode_base64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < count ? std::to_integer<std::uint32_t>(bytes[at + i]) : 0);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? kAlphabet[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::optional<std::vector<std::byte>> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = padding_of(text);
  const std::size_t letters = text.size() - padding, count = text.size() / 4 * 3 - padding;
  std::vector<std::byte> bytes;
  bytes.reserve(count);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < letters; ++i) {
    const std::uint8_t value = kValues[static_cast<std::uint8_t>(text[i])];
    if (value == kNone) return std::nullopt;
    bits = bits << 6 | value;
    if (i % 4 != 0) bytes.push_back(static_cast<std::byte>(bits >> (6 - 2 * (i % 4)) & 0xff));
  }
  const std::uint32_t unused = padding == 2 ? 0xf : padding == 1 ? 3 : 0;
  if ((bits & unused) != 0) return std::nullopt;
  return bytes;
}

}  // namespace computron
