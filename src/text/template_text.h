// Methods of Python's texts that chat templates call, of UTF-8.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/text/template_functions.h"

namespace computron::jinja {

using CharacterTest = std::function<bool(char32_t)>;

// What Python's str.isspace says of a character.
bool is_space(char32_t c);
// Where the first character stands that `drops` does not; the text's length if there is none.
std::size_t first_not(std::string_view text, const CharacterTest& drops);
// `sides`: "l", "r" or "lr". Of the characters in `characters`, or of white space if that is null.
std::string stripped(std::string_view text, std::string_view sides, const Value* characters);
std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string capitalized(std::string_view text);
std::string title(std::string_view text);
// The first `most` of them; all if that is negative. TemplateError where `from` is empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most, Work& work);
// At most `most` cuts, all if that is negative. TemplateError where the separator is empty.
List split_at_space(std::string_view text, std::int64_t most, Work& work);
List split_at(std::string_view text, std::string_view separator, std::int64_t most, Work& work);
List split_at_last(std::string_view text, std::string_view separator, std::int64_t most, Work& work);
List lines_of(std::string_view text, Work& work);

}  // namespace computron::jinja
