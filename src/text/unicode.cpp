#include "src/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>

#include "computron/base/error.h"
#include "computron/base/utf8.h"
#include "src/text/unicode_tables.h"

namespace computron {
namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_in(std::span<const CharacterRange> ranges, char32_t c) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                      [](char32_t value, const CharacterRange& range) { return value < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// Letters in circles and squares, symbols by category, are alphabetic too.
bool is_enclosed_letter(char32_t c) {
  static constexpr CharacterRange kEnclosed[] = {
      {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  return is_in(kEnclosed, c);
}

utf8proc_option_t options_of(NormalForm form) {
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string mapped(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t count = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &bytes, options_of(form));
  if (count < 0) throw Error(ExitCode::kInternal, std::string("utf8proc: ") + utf8proc_errmsg(count));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count)};
}

}  // namespace

bool is_white_space(char32_t c) {
  static constexpr CharacterRange kWhiteSpace[] = {
      {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  return is_in(kWhiteSpace, c);
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_word_character(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || is_enclosed_letter(c);
  }
}

bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CO ||
         (kind == UTF8PROC_CATEGORY_CF && !is_in(kFormatsAfterUnicode8, c));
}

bool is_bert_space(char32_t c) { return is_white_space(c); }

bool is_bert_punctuation(char32_t c) {
  if (c < 0x80) return is_ascii_punctuation(c);
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return !is_in(kPunctuationAfterUnicode8, c);
    default:
      return c == 0x166D || c == 0x111C9;  // punctuation in Unicode 8, something else since
  }
}

bool is_bert_accent(char32_t c) {
  if (c == 0x1734) return true;  // nonspacing in Unicode 8, spacing since
  return category(c) == UTF8PROC_CATEGORY_MN && !is_in(kMarksAfterUnicode8, c);
}

bool is_chinese(char32_t c) {
  static constexpr CharacterRange kIdeographs[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                                   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F},
                                                   {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return is_in(kIdeographs, c);
}

std::size_t grapheme_end(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  utf8proc_int32_t state = 0;
  auto last = static_cast<utf8proc_int32_t>(next_character(text, end));
  for (std::size_t at = end; at < text.size(); end = at) {
    const auto c = static_cast<utf8proc_int32_t>(next_character(text, at));
    if (utf8proc_grapheme_break_stateful(last, c, &state)) return end;
    last = c;
  }
  return end;
}

std::string_view without_outer_space(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    if (is_white_space(next_character(text, at))) continue;
    begin = std::min(begin, here);
    end = at;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

void append_lowercase(std::string& text, char32_t c) {
  if (c == 0x130) {  // the only one that becomes two: i with a dot above
    text += "i\xCC\x87";
    return;
  }
  append_character(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

// Between characters that stay as they are whatever is beside them, the text is mapped part by part.
std::string normal_form(std::string_view text, NormalForm form) {
  if (form == NormalForm::kNfc || form == NormalForm::kNfd) return mapped(text, form);
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!is_in(kCompatibleAfterUnicode11, next_character(text, at))) continue;
    out += mapped(text.substr(done, begin - done), form);
    out += text.substr(begin, at - begin);
    done = at;
  }
  return out += mapped(text.substr(done), form);
}

}  // namespace computron
