#include "src/text/template_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "computron/base/utf8.h"
#include "src/text/unicode.h"

namespace computron::jinja {
namespace {

std::size_t end_without(std::string_view text, const CharacterTest& drops) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    std::size_t at = begin;
    if (!drops(next_character(text, at))) break;
    end = begin;
  }
  return end;
}

using Mapping = utf8proc_int32_t (*)(utf8proc_int32_t);

std::string mapped(std::string_view text, Mapping mapping) {
  std::string result;
  for_each_character(text, [&](char32_t c) {
    append_character(result, static_cast<char32_t>(mapping(static_cast<utf8proc_int32_t>(c))));
  });
  return result;
}

}  // namespace

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

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

std::string lower(std::string_view text) { return mapped(text, utf8proc_tolower); }
std::string upper(std::string_view text) { return mapped(text, utf8proc_toupper); }

std::string capitalized(std::string_view text) {
  std::size_t at = 0;
  if (text.empty()) return "";
  next_character(text, at);
  return upper(text.substr(0, at)) + lower(text.substr(at));
}

std::string title(std::string_view text) {
  std::string result;
  bool within = false;  // a word
  for_each_character(text, [&](char32_t c) {
    const auto character = static_cast<utf8proc_int32_t>(c);
    append_character(result, static_cast<char32_t>(within ? utf8proc_tolower(character) : utf8proc_totitle(character)));
    within = utf8proc_tolower(character) != utf8proc_toupper(character);
  });
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

List lines_of(std::string_view text, Work& work) {
  List lines;
  while (!text.empty()) {
    work.charge();
    const std::size_t end = text.find_first_of("\r\n");
    lines.emplace_back(text.substr(0, end));
    if (end == text.npos) break;
    text.remove_prefix(end + (text.substr(end).starts_with("\r\n") ? 2 : 1));
  }
  return lines;
}

}  // namespace computron::jinja
