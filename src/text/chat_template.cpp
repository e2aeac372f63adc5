#include "src/text/chat_template.h"

#include <optional>
#include <utility>

namespace computron {
namespace {

// The character behind a backslash in a literal.
char unescaped(char c) { return c == 'n' ? '\n' : c == 't' ? '\t' : c; }

// Reads an expression term by term.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  TemplateSum sum() {
    TemplateSum terms;
    do {
      terms.push_back(peek() == '\'' || peek() == '"' ? literal() : name());
    } while (accept('+'));
    return peek() == '\0' && valid_ ? terms : TemplateSum();
  }

 private:
  // The next character that counts; '\0' at the end. Parentheses around sums and terms do not.
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n()").find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  TemplateTerm literal() {
    const char quote = text_[at_++];
    TemplateTerm term{true, ""};
    for (; at_ < text_.size() && text_[at_] != quote; ++at_) {
      const bool escape = text_[at_] == '\\' && at_ + 1 < text_.size();
      term.text += escape ? unescaped(text_[++at_]) : text_[at_];
    }
    valid_ = valid_ && at_ < text_.size();
    ++at_;
    return term;
  }

  TemplateTerm name() {
    TemplateTerm term;
    for (; peek() != '\0' && peek() != '+'; ++at_) term.text += text_[at_] == '"' ? '\'' : text_[at_];
    valid_ = valid_ && !term.text.empty();
    return term;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool valid_ = true;
};

// The next expression between {{ and }}, their dashes left out; moves `at` behind it.
std::optional<std::string_view> next_expression(std::string_view text, std::size_t& at) {
  std::size_t begin = text.find("{{", at);
  if (begin == std::string_view::npos) return std::nullopt;
  begin += 2;
  char quote = '\0';  // that of the literal we are in
  for (std::size_t end = begin; end + 1 < text.size(); ++end) {
    const char c = text[end];
    if (quote != '\0') {
      if (c == '\\') ++end;
      if (c == quote) quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '}' && text[end + 1] == '}') {
      at = end + 2;
      std::string_view expression = text.substr(begin, end - begin);
      if (expression.starts_with('-')) expression.remove_prefix(1);
      if (expression.ends_with('-')) expression.remove_suffix(1);
      return expression;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<TemplateSum> printed_by(std::string_view chat_template) {
  std::vector<TemplateSum> sums;
  std::size_t at = 0;
  while (const auto expression = next_expression(chat_template, at)) sums.push_back(Reader(*expression).sum());
  return sums;
}

}  // namespace computron
