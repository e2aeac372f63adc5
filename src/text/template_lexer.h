// A Jinja template in tokens, with the white space around its tags taken away as transformers has Jinja2 do it
// (trim_blocks, lstrip_blocks, no trailing newline).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace computron::jinja {

// A template that asks for what is not done here, or that is damaged; says the line, and what it is.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
[[noreturn]] void fail(const std::string& what);
[[noreturn]] void fail_at(int line, const std::string& what);

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kPrintBegin,
    kPrintEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kSign,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of a string its value, without quotes and escapes
  int line = 0;      // from 1
};

// Ends with a token kEnd. TemplateError naming what cannot be read.
std::vector<Token> tokens_of(std::string_view text);

}  // namespace computron::jinja
