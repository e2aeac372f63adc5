#include "src/text/template_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>

#include "computron/base/utf8.h"
#include "src/text/case_tables.h"
#include "src/text/unicode.h"

namespace computron::jinja {
namespace {

// Where the character begins that ends at `end`.
std::size_t begin_of(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

std::size_t end_without(std::string_view text, const CharacterTest& drops) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = begin_of(text, end);
    std::size_t at = begin;
    if (!drops(next_character(text, at))) break;
    end = begin;
  }
  return end;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

template <std::size_t n>
bool is_in(const CharacterRange (&ranges)[n], char32_t c) {
  return std::ranges::any_of(ranges, [c](const CharacterRange& range) { return range.first <= c && c <= range.last; });
}

// Letters that have capitals, or that are capitals, or that look like such.
bool is_cased(char32_t c) {
  const utf8proc_category_t kind = category(c);
  const auto character = static_cast<utf8proc_int32_t>(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT ||
         utf8proc_tolower(character) != utf8proc_toupper(character) || is_in(kCasedWithoutMapping, c);
}

// What may stand within a word between its letters, Unicode's Case_Ignorable.
bool is_case_ignorable(char32_t c) {
  static constexpr std::u32string_view kWithinWords =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return kWithinWords.find(c) != kWithinWords.npos;
  }
}

bool begins_cased(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_cased(next_character(text, at));
}

// Unicode's Final_Sigma: a letter stands before text[begin, end), and none behind it.
bool ends_word(std::string_view text, std::size_t begin, std::size_t end) {
  const std::size_t before = end_without(text.substr(0, begin), is_case_ignorable);
  const std::string_view behind = text.substr(end);
  return before > 0 && begins_cased(text.substr(begin_of(text, before))) &&
         !begins_cased(behind.substr(first_not(behind, is_case_ignorable)));
}

// The character at text[begin, end) as a small one.
void append_lower(std::string& result, std::string_view text, std::size_t begin, std::size_t end) {
  constexpr char32_t kSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;
  std::size_t at = begin;
  const char32_t c = next_character(text, at);
  if (c != kSigma) return append_lowercase(result, c);
  append_character(result, ends_word(text, begin, end) ? kFinalSigma : kSmallSigma);
}

enum class Capital { kUpper, kTitle };

void append_capital(std::string& result, char32_t c, Capital kind) {
  const auto found = std::ranges::lower_bound(kLongCapitals, c, {}, &LongCapital::character);
  const bool listed = found != std::end(kLongCapitals) && found->character == c;
  const char32_t* several = !listed ? nullptr : kind == Capital::kUpper ? found->upper : found->title;
  if (several != nullptr && *several != 0) {
    for (int i = 0; i < 3 && several[i] != 0; ++i) append_character(result, several[i]);
    return;
  }
  const auto character = static_cast<utf8proc_int32_t>(c);
  const auto one = kind == Capital::kUpper ? utf8proc_toupper(character) : utf8proc_totitle(character);
  append_character(result, static_cast<char32_t>(one));
}

// Calls f(character, begin, end) for each.
template <class F>
void for_each_with_place(std::string_view text, F&& f) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_character(text, at);
    f(c, begin, at);
  }
}

}  // namespace

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND || is_in(kDigitsNotDecimal, c); }

std::size_t first_not(std::string_view text, const CharacterTest& drops) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!drops(next_character(text, at))) return begin;
  }
  return text.size();
}

std::string stripped(std::string_view text, std::string_view sides, const Value* characters) {
  CharacterTest drops = is_space;
  if (characters != nullptr && !characters->is_none()) {
    const std::string& set = characters->text_of("strip");
    drops = [&set](char32_t c) {
      for (std::size_t at = 0; at < set.size();) {
        if (next_character(set, at) == c) return true;
      }
      return false;
    };
  }
  if (sides.find('l') != sides.npos) text.remove_prefix(first_not(text, drops));
  if (sides.find('r') != sides.npos) text = text.substr(0, end_without(text, drops));
  return std::string(text);
}

std::string lower(std::string_view text) {
  std::string result;
  for_each_with_place(text,
                      [&](char32_t, std::size_t begin, std::size_t end) { append_lower(result, text, begin, end); });
  return result;
}

std::string upper(std::string_view text) {
  std::string result;
  for_each_character(text, [&result](char32_t c) { append_capital(result, c, Capital::kUpper); });
  return result;
}

std::string capitalized(std::string_view text) {
  std::string result;
  for_each_with_place(text, [&](char32_t c, std::size_t begin, std::size_t end) {
    if (begin == 0) return append_capital(result, c, Capital::kTitle);
    append_lower(result, text, begin, end);
  });
  return result;
}

std::string title(std::string_view text) {
  std::string result;
  bool within = false;  // a word
  for_each_with_place(text, [&](char32_t c, std::size_t begin, std::size_t end) {
    if (within) {
      append_lower(result, text, begin, end);
    } else {
      append_capital(result, c, Capital::kTitle);
    }
    within = is_cased(c);
  });
  return result;
}

std::string title_of_words(std::string_view text) {
  constexpr std::u32string_view kMarks = U"-({[<";
  const auto is_between = [&](char32_t c) { return is_space(c) || kMarks.find(c) != kMarks.npos; };
  std::string result;
  for (bool between = false; !text.empty(); between = !between) {
    const std::size_t end = first_not(text, [&](char32_t c) { return is_between(c) == between; });
    std::size_t first = 0;
    if (end > 0) append_capital(result, next_character(text, first), Capital::kUpper);
    result += lower(text.substr(first, end - first));
    text.remove_prefix(end);
  }
  return result;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most, Work& work) {
  if (from.empty()) fail("replace: an empty text");
  std::string result;
  std::size_t at = 0;
  for (std::size_t found = text.find(from); found != text.npos && most != 0; found = text.find(from, at), --most) {
    work.charge_text(to.size() + from.size());
    result.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
  return result.append(text.substr(at));
}

List split_at_space(std::string_view text, std::int64_t most, Work& work) {
  List parts;
  for (;;) {
    text.remove_prefix(first_not(text, is_space));
    if (text.empty()) return parts;
    work.charge();
    const std::size_t end = first_not(text, [](char32_t c) { return !is_space(c); });
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.emplace_back(text.substr(0, end_without(text, is_space)));
      return parts;
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

List split_at(std::string_view text, std::string_view separator, std::int64_t most, Work& work) {
  if (separator.empty()) fail("split: an empty separator");
  List parts;
  for (std::size_t found; most != 0 && (found = text.find(separator)) != text.npos; --most) {
    work.charge();
    parts.emplace_back(text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

List split_at_last(std::string_view text, std::string_view separator, std::int64_t most, Work& work) {
  if (separator.empty()) fail("rsplit: an empty separator");
  List parts;
  for (std::size_t found; most != 0 && (found = text.rfind(separator)) != text.npos; --most) {
    work.charge();
    parts.emplace_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

List lines_of(std::string_view text, bool keep_ends, Work& work) {
  constexpr std::u32string_view kEnds = U"\n\v\f\r\x1c\x1d\x1e\u0085\u2028\u2029";
  const auto goes_on = [&](char32_t c) { return kEnds.find(c) == kEnds.npos; };
  List lines;
  while (!text.empty()) {
    work.charge();
    const std::size_t end = first_not(text, goes_on);
    std::size_t next = end;
    if (text.substr(end).starts_with("\r\n")) {
      next += 2;
    } else if (end < text.size()) {
      next_character(text, next);
    }
    lines.emplace_back(text.substr(0, keep_ends ? next : end));
    text.remove_prefix(next);
  }
  return lines;
}

namespace {

// 0 to 9, or -1. Unicode's decimal digits stand in tens, each beginning with its zero.
int decimal_digit(char32_t c) {
  if (category(c) != UTF8PROC_CATEGORY_ND) return -1;
  char32_t first = c;
  while (first > 0 && category(first - 1) == UTF8PROC_CATEGORY_ND) --first;
  return static_cast<int>((c - first) % 10);
}

// A text of a number in ASCII, without outer space and without single underscores between digits; nothing where there
// is more that Python reads in no number.
std::optional<std::string> plain_number(std::string_view text) {
  std::string plain;
  bool after_digit = false, after_underscore = false;
  bool well_formed = true;
  for_each_character(stripped(text, "lr", nullptr), [&](char32_t c) {
    const int digit = decimal_digit(c);
    well_formed =
        well_formed && (c < 0x80 || digit >= 0) && (!after_underscore || digit >= 0) && (c != '_' || after_digit);
    after_digit = digit >= 0;
    after_underscore = c == '_';
    if (c != '_') plain += digit >= 0 ? static_cast<char>('0' + digit) : static_cast<char>(c);
  });
  if (!well_formed || after_underscore) return std::nullopt;
  return plain;
}

bool is_infinite_or_none(std::string_view number) {
  if (number.starts_with('+') || number.starts_with('-')) number.remove_prefix(1);
  const std::string name = lower(number);
  return name == "inf" || name == "infinity" || name == "nan";
}

}  // namespace

std::optional<std::int64_t> whole_number_in(std::string_view text) {
  const std::optional<std::string> plain = plain_number(text);
  if (!plain) return std::nullopt;
  const std::size_t digits = plain->find_first_not_of("+-") == 1 ? 1 : 0;
  if (digits == plain->size() || plain->find_first_not_of("0123456789", digits) != plain->npos) return std::nullopt;
  errno = 0;
  const std::int64_t number = std::strtoll(plain->c_str(), nullptr, 10);
  if (errno == ERANGE) fail("a number of more than 64 bits");
  return number;
}

std::optional<double> number_in(std::string_view text) {
  const std::optional<std::string> plain = plain_number(text);
  if (!plain || plain->empty()) return std::nullopt;
  if (!is_infinite_or_none(*plain) && plain->find_first_not_of("0123456789+-.eE") != plain->npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(plain->c_str(), &end);
  if (*end != '\0') return std::nullopt;
  return number;
}

}  // namespace computron::jinja
