#include "src/text/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "computron/base/json_text.h"
#include "computron/base/utf8.h"

namespace computron::jinja {
namespace {

constexpr std::string_view kBlank = " \t\r\n\v\f";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool in_name(char c) { return begins_name(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {
    if (!is_utf8(text)) fail("it is not UTF-8");
    if (text_.ends_with('\n')) text_.remove_suffix(1);
    if (text_.ends_with('\r')) text_.remove_suffix(1);
  }

  std::vector<Token> all() {
    while (at_ < text_.size()) {
      const std::size_t tag = next_tag();
      take_text(tag);
      if (tag == std::string_view::npos) break;
      take_tag();
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool at(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  void move_to(std::size_t where) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(where), '\n'));
    at_ = where;
  }
  void skip_blank() { move_to(std::min(text_.find_first_not_of(kBlank, at_), text_.size())); }

  std::size_t next_tag() const {
    for (std::size_t i = text_.find('{', at_); i != std::string_view::npos; i = text_.find('{', i + 1)) {
      if (i + 1 < text_.size() && std::string_view("{%#").find(text_[i + 1]) != std::string_view::npos) return i;
    }
    return std::string_view::npos;
  }

  // The text before the tag at `tag`, without the white space that the tag takes along.
  void take_text(std::size_t tag) {
    std::string_view before = text_.substr(at_, tag == std::string_view::npos ? tag : tag - at_);
    const bool line_begins = at_ == 0 || text_[at_ - 1] == '\n';
    if (tag != std::string_view::npos) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      if (sign == '-') {
        before = before.substr(0, before.find_last_not_of(kBlank) + 1);
      } else if (sign != '+' && text_[tag + 1] != '{') {
        before = without_indentation(before, line_begins);
      }
    }
    if (!before.empty()) add(Token::Kind::kText, with_plain_newlines(before));
    move_to(tag == std::string_view::npos ? text_.size() : tag);
  }

  static std::string_view without_indentation(std::string_view text, bool line_begins) {
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_begins) return text;
    const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    return text.find_first_not_of(kBlank, begin) == std::string_view::npos ? text.substr(0, begin) : text;
  }

  static std::string with_plain_newlines(std::string_view text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
      plain += text[i] == '\r' ? '\n' : text[i];
    }
    return plain;
  }

  void take_tag() {
    if (at("{#")) return take_comment();
    const bool print = at("{{");
    add(print ? Token::Kind::kPrintBegin : Token::Kind::kBlockBegin, "");
    move_to(at_ + 2);
    if (at("-") || at("+")) move_to(at_ + 1);
    const std::string_view end = print ? "}}" : "%}";
    std::string open;  // brackets
    for (skip_blank(); open.size() > 0 || !ends_tag(end); skip_blank()) {
      if (at_ >= text_.size()) fail_at(line_, fmt::format("a tag without its {}", end));
      take_token(open);
    }
    add(print ? Token::Kind::kPrintEnd : Token::Kind::kBlockEnd, "");
    leave_tag(end);
  }

  bool ends_tag(std::string_view end) const {
    const std::string_view rest = text_.substr(at_);
    return rest.starts_with(end) ||
           ((rest.starts_with('-') || rest.starts_with('+')) && rest.substr(1).starts_with(end));
  }

  // Behind its end: the white space that it takes along.
  void leave_tag(std::string_view end) {
    const bool strips = at("-"), keeps = at("+");
    move_to(at_ + (strips || keeps ? 1 : 0) + end.size());
    if (strips) return skip_blank();
    if (keeps || end == "}}") return;
    if (at("\r\n")) {
      move_to(at_ + 2);
    } else if (at("\n")) {
      move_to(at_ + 1);
    }
  }

  void take_comment() {
    const std::size_t end = text_.find("#}", at_ + 2);
    if (end == std::string_view::npos) fail_at(line_, "a comment without its end");
    const char sign = text_[end - 1];
    move_to(end > at_ + 2 && (sign == '-' || sign == '+') ? end - 1 : end);
    leave_tag("#}");
  }

  void take_token(std::string& open) {
    const char c = text_[at_];
    if (c == '\'' || c == '"') return take_string();
    if (is_digit(c)) return take_number();
    if (begins_name(c)) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && in_name(text_[at_])) ++at_;
      return add(Token::Kind::kName, std::string(text_.substr(begin, at_ - begin)));
    }
    take_sign(open);
  }

  void take_sign(std::string& open) {
    static constexpr std::array<std::string_view, 26> kSigns = {"==", "!=", ">=", "<=", "**", "//", "+", "-", "/",
                                                                "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto sign = std::find_if(kSigns.begin(), kSigns.end(), [this](std::string_view s) { return at(s); });
    if (sign == kSigns.end()) fail_at(line_, fmt::format("the character {}", shown(text_.substr(at_, 1))));
    if (std::string_view("([{").find(*sign) != std::string_view::npos) open += *sign;
    if (std::string_view(")]}").find(*sign) != std::string_view::npos) {
      if (open.empty()) fail_at(line_, fmt::format("'{}' without its beginning", *sign));
      open.pop_back();
    }
    add(Token::Kind::kSign, std::string(*sign));
    move_to(at_ + sign->size());
  }

  void take_number() {
    const std::size_t begin = at_;
    bool is_float = false;
    while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '_')) ++at_;
    if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      is_float = true;
      for (++at_; at_ < text_.size() && is_digit(text_[at_]);) ++at_;
    }
    std::string number(text_.substr(begin, at_ - begin));
    std::erase(number, '_');
    if (number.size() > 18 || (at_ < text_.size() && begins_name(text_[at_]))) {
      fail_at(line_, fmt::format("the number {}", shown(text_.substr(begin, at_ - begin + 1))));
    }
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(number));
  }

  void take_string() {
    const char quote = text_[at_];
    const int line = line_;
    std::string value;
    std::size_t i = at_ + 1;
    while (i < text_.size() && text_[i] != quote) {
      if (text_[i] == '\\' && i + 1 < text_.size()) {
        i = take_escape(i + 1, value);
      } else {
        value += text_[i++];
      }
    }
    if (i >= text_.size()) fail_at(line, "a text without its closing quote");
    tokens_.push_back({Token::Kind::kString, std::move(value), line});
    move_to(i + 1);
  }

  // What stands behind a backslash at `i`, as in Python; returns where it ends.
  std::size_t take_escape(std::size_t i, std::string& value) const {
    static constexpr std::string_view kLetters = "ntrabfv\\'\"", kMeanings = "\n\t\r\a\b\f\v\\'\"";
    const std::size_t found = kLetters.find(text_[i]);
    if (found != std::string_view::npos) {
      value += kMeanings[found];
      return i + 1;
    }
    if (text_[i] == '\n') return i + 1;  // the line goes on
    const std::size_t digits = text_[i] == 'x' ? 2 : text_[i] == 'u' ? 4 : text_[i] == 'U' ? 8 : 0;
    if (digits == 0) {
      value += '\\';
      return i;
    }
    char32_t character = 0;
    for (std::size_t k = 1; k <= digits; ++k) {
      const char c = i + k < text_.size() ? text_[i + k] : '\0';
      const std::size_t digit = std::string_view("0123456789abcdef").find(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
      if (digit == std::string_view::npos) fail_at(line_, "an escape that is no character");
      character = character * 16 + static_cast<char32_t>(digit);
    }
    const bool surrogate = character >= 0xD800 && character < 0xE000;
    if (surrogate || character > 0x10FFFF) fail_at(line_, "an escape that is no character");
    append_character(value, character);
    return i + 1 + digits;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

void fail(const std::string& what) { throw TemplateError(what); }
void fail_at(int line, const std::string& what) { throw TemplateError(fmt::format("line {}: {}", line, what)); }

std::vector<Token> tokens_of(std::string_view text) { return Lexer(text).all(); }

}  // namespace computron::jinja
