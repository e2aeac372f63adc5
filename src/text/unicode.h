// Kinds of characters and normal forms, as the tokenizers of the Hugging Face library see them.
#pragma once

#include <string>
#include <string_view>

namespace computron {

bool is_white_space(char32_t c);     // the property White_Space
bool is_numeric(char32_t c);         // categories Nd, Nl, No
bool is_word_character(char32_t c);  // \w of regular expressions: letters, marks, digits, connectors, joiners

// Where the grapheme cluster that begins at `begin` ends.
std::size_t grapheme_end(std::string_view text, std::size_t begin);

// A part of `text`.
std::string_view without_outer_space(std::string_view text);

// BERT's kinds. They follow Unicode 8: marks, format characters and punctuation of later versions are not among them.
bool is_bert_control(char32_t c);  // category Cc, Cf or Co; TAB, LF and CR are not, being space
bool is_bert_space(char32_t c);
bool is_bert_punctuation(char32_t c);
bool is_bert_accent(char32_t c);  // nonspacing marks
bool is_chinese(char32_t c);      // CJK ideographs

// Of one character, without regard to its neighbours.
void append_lowercase(std::string& text, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Of well-formed text.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace computron
