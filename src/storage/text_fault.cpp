#include "computron/storage/text_fault.h"

#include <charconv>

#include "computron/base/utf8.h"

namespace computron {
namespace {

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
    const Utf8Head head = utf8_head(line.substr(i));
    if (head.kind != Utf8Head::kCharacter) return TextFault{i, "an ill-formed UTF-8 sequence"};
    i += head.bytes;
  }
  return std::nullopt;
}

}  // namespace computron
