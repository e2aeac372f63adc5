// Methods of Python's texts that chat templates call, of UTF-8.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/text/template_functions.h"

namespace computron::jinja {

using CharacterTest = std::function<bool(char32_t)>;

// What Python's str.isspace and str.isdigit say of a character.
bool is_space(char32_t c);
bool is_digit(char32_t c);
// Where the first character stands that `drops` does not; the text's length if there is none.
std::size_t first_not(std::string_view text, const CharacterTest& drops);
// `sides`: "l", "r" or "lr". Of the characters in `characters`, or of white space if that is null.
std::string stripped(std::string_view text, std::string_view sides, const Value* characters);
// With capitals that are several characters, and with the small sigma that ends a word.
std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string capitalized(std::string_view text);
// Of Python's method a word is a run of letters; of Jinja2's filter it begins behind white space and -({[<.
std::string title(std::string_view text);
std::string title_of_words(std::string_view text);
// The first `most` of them; all if that is negative. TemplateError where `from` is empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most, Work& work);
// At most `most` cuts, all if that is negative. TemplateError where the separator is empty.
List split_at_space(std::string_view text, std::int64_t most, Work& work);
List split_at(std::string_view text, std::string_view separator, std::int64_t most, Work& work);
List split_at_last(std::string_view text, std::string_view separator, std::int64_t most, Work& work);
// `keep_ends`: with what ends each of them.
List lines_of(std::string_view text, bool keep_ends, Work& work);

// What Python's int() and float() read in a text; nothing where that is an error. TemplateError of whole numbers of
// more than 64 bits.
std::optional<std::int64_t> whole_number_in(std::string_view text);
std::optional<double> number_in(std::string_view text);

}  // namespace computron::jinja
