// UTF-8 by hand: characters of well-formed text, and well-formed text of any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace computron {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// What begins at the start of non-empty bytes.
struct Utf8Head {
  enum Kind : std::uint8_t {
    kCharacter,   // one whole character
    kIncomplete,  // the beginning of one, which more bytes could complete
    kIllFormed    // the longest beginning of a character that these bytes rule out; at least one byte
  };
  Kind kind = kCharacter;
  std::size_t bytes = 0;
};
Utf8Head utf8_head(std::string_view bytes);

bool is_utf8(std::string_view bytes);

// Characters of well-formed text.
std::size_t count_characters(std::string_view text);

// The character at `at` of well-formed text, which moves behind it.
char32_t next_character(std::string_view text, std::size_t& at);
void append_character(std::string& text, char32_t character);

// Moves what is complete at the front of `bytes` to the end of `text`, each ill-formed part as U+FFFD, and leaves a
// last character's beginning.
void take_whole_characters(std::string& bytes, std::string& text);

// Calls f(character) for each of well-formed text.
template <class F>
void for_each_character(std::string_view text, F&& f) {
  for (std::size_t at = 0; at < text.size();) f(next_character(text, at));
}

}  // namespace computron
