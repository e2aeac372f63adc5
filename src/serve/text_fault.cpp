#include "text_fault.h"

#include <charconv>

namespace computron {
namespace {

std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte rules out overlong forms, UTF-16 surrogates and what lies beyond U+10FFFF (Unicode 15, table 3-7).
bool second_byte_fits(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

// Length of the well-formed character at the start of `text`, or 0.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = sequence_length(byte(0));
  if (length <= 1) return length;
  if (text.size() < length || !second_byte_fits(byte(0), byte(1))) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

// The code unit of a \uXXXX at the start of `text`, or -1.
int escaped_unit(std::string_view text) {
  if (text.size() < 6 || !text.starts_with("\\u")) return -1;
  unsigned unit = 0;
  const auto [end, status] = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
  return status == std::errc() && end == text.data() + 6 ? static_cast<int>(unit) : -1;
}

struct Escape {
  std::size_t length;
  const char* fault;  // nullptr: none
};

// `text` starts with a backslash. A backslash escapes a second one; of other escapes than \u the letter is looked at
// like any other, and what is no escape at all is left to the JSON parser to refuse.
Escape read_escape(std::string_view text) {
  const int unit = escaped_unit(text);
  if (unit < 0) return {text.starts_with("\\\\") ? std::size_t{2} : 1, nullptr};
  if (unit == 0) return {6, "a NUL character"};
  if (unit >= 0xDC00 && unit <= 0xDFFF) return {6, "a lone surrogate"};
  if (unit < 0xD800 || unit > 0xDBFF) return {6, nullptr};
  const int next = escaped_unit(text.substr(6));
  return {12, next >= 0xDC00 && next <= 0xDFFF ? nullptr : "a lone surrogate"};
}

}  // namespace

std::optional<TextFault> find_text_fault(std::string_view line) {
  std::size_t i = 0;
  while (i < line.size()) {
    if (line[i] == '\0') return TextFault{i, "a NUL byte"};
    if (line[i] == '\\') {
      const Escape escape = read_escape(line.substr(i));
      if (escape.fault != nullptr) return TextFault{i, escape.fault};
      i += escape.length;
      continue;
    }
    const std::size_t length = character_length(line.substr(i));
    if (length == 0) return TextFault{i, "an ill-formed UTF-8 sequence"};
    i += length;
  }
  return std::nullopt;
}

}  // namespace computron
