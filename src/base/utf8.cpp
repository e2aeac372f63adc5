#include "computron/base/utf8.h"

namespace computron {
namespace {

std::size_t length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Unicode 15, table 3-7.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

}  // namespace

Utf8Head utf8_head(std::string_view bytes) {
  const auto byte = [bytes](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const std::size_t length = length_by_lead(byte(0));
  if (length == 0) return {Utf8Head::kIllFormed, 1};
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Head::kIncomplete, i};
    if (i == 1 ? !second_byte_fits(byte(0), byte(1)) : (byte(i) & 0xC0) != 0x80) return {Utf8Head::kIllFormed, i};
  }
  return {Utf8Head::kCharacter, length};
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Head head = utf8_head(bytes);
    if (head.kind != Utf8Head::kCharacter) return false;
    bytes.remove_prefix(head.bytes);
  }
  return true;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const unsigned char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

char32_t next_character(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t character = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length && at + i < text.size(); ++i) {
    character = character << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3Fu);
  }
  at += length;
  return character;
}

void append_character(std::string& text, char32_t c) {
  const auto put = [&text](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

void take_whole_characters(std::string& bytes, std::string& text) {
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Utf8Head head = utf8_head(rest);
    if (head.kind == Utf8Head::kIncomplete) break;
    text += head.kind == Utf8Head::kCharacter ? rest.substr(0, head.bytes) : kReplacementCharacter;
    rest.remove_prefix(head.bytes);
  }
  bytes.erase(0, bytes.size() - rest.size());
}

}  // namespace computron
