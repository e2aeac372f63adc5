#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cctype>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "src/text/unicode_tables.h"
#include "src/text/work_limit.h"

namespace computron {
namespace {

constexpr std::uint32_t kMatchLimit = 20'000'000;  // steps of one match; one letter of a text that fits is a few
constexpr std::uint32_t kHeapLimitKib = 64 << 10;
constexpr std::size_t kJitStackBytes = 1 << 20;

// Unicode's White_Space; PCRE2's own class has U+180E too.
constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

[[noreturn]] void refuse(const std::string& pattern, const std::string& why) {
  throw CheckpointError(fmt::format("the regular expression '{}': {}", printable(pattern), why));
}

// Rewrites an expression from left to right.
class Translator {
 public:
  explicit Translator(const std::string& pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    const char c = pattern_[at_++];
    if (c == '\\') return escape();
    if (in_class_) return in_class(c);
    if (c == '[') open_class();
    if (c == '(') check_group();
    if (c == '{') check_counts();
    out_ += c;
  }

  std::string_view rest() const { return std::string_view(pattern_).substr(at_); }

  // What both syntaxes mean the same by.
  void check_group() const {
    if (rest().starts_with('*')) refuse(pattern_, "'(*' is not supported");
    if (!rest().starts_with('?')) return;
    for (const char* known : {"?:", "?i:", "?=", "?!", "?<=", "?<!", "?>"}) {
      if (rest().starts_with(known)) return;
    }
    refuse(pattern_, fmt::format("'({}' is not supported", printable(rest().substr(0, 3))));
  }

  // {n}, {n,} and {n,m}. A '+' behind them is possessive in one syntax only, and {,m} is no count in the other.
  void check_counts() const {
    const std::size_t end = rest().find('}');
    if (end == std::string_view::npos || rest().starts_with(',')) refuse(pattern_, "'{' without a count");
    if (rest().substr(end + 1).starts_with('+')) refuse(pattern_, "'+' behind a count is not supported");
  }

  void open_class() {
    in_class_ = true;
    class_begin_ = at_ + (at_ < pattern_.size() && pattern_[at_] == '^' ? 1 : 0);
  }

  void in_class(char c) {
    if (c == '[') refuse(pattern_, "a class within a class is not supported");
    if (c == '&' && at_ < pattern_.size() && pattern_[at_] == '&') refuse(pattern_, "'&&' is not supported");
    if (c == ']' && at_ - 1 > class_begin_) in_class_ = false;
    out_ += c;
  }

  void escape() {
    if (at_ == pattern_.size()) refuse(pattern_, "ends with '\\'");
    const char c = pattern_[at_++];
    switch (c) {
      case 's':
        return put_class(kSpaces);
      case 'S':
        if (in_class_) refuse(pattern_, "'\\S' in a class is not supported");
        out_ += fmt::format("[^{}]", kSpaces);
        return;
      case 'p':
        return property();
      case 'P':
      case 'd':
      case 'D':
        refuse(pattern_, fmt::format("'\\{}' is not supported", c));
      case 'n':
      case 'r':
      case 't':
        break;
      default:
        if (!std::ispunct(static_cast<unsigned char>(c))) {
          refuse(pattern_, fmt::format("'\\{}' is not supported", printable(std::string_view(&c, 1))));
        }
    }
    out_ += '\\';
    out_ += c;
  }

  // Categories and scripts with what later versions of Unicode have. A script has its own characters only, not those
  // that it shares with others.
  void property() {
    const std::size_t end = pattern_.find('}', at_);
    if (at_ >= pattern_.size() || pattern_[at_] != '{' || end == std::string::npos)
      refuse(pattern_, "'\\p' without '{}'");
    const std::string name = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    if (name == "Han") return put_class(R"(\p{sc:Han})", members_after_unicode_14(name));
    for (const char* known : {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "P", "S"}) {
      if (name == known) return put_class(fmt::format("\\p{{{}}}", name), members_after_unicode_14(name));
    }
    refuse(pattern_, fmt::format("'\\p{{{}}}' is not supported", printable(name)));
  }

  static std::string_view members_after_unicode_14(std::string_view property) {
    for (const YoungCharacters& young : kAfterUnicode14) {
      if (young.property == property) return young.members;
    }
    return {};
  }

  void put_class(std::string_view members, std::string_view more = {}) {
    out_ += in_class_ ? fmt::format("{}{}", members, more) : fmt::format("[{}{}]", members, more);
  }

  const std::string& pattern_;
  std::size_t at_ = 0;
  std::string out_;
  bool in_class_ = false;
  std::size_t class_begin_ = 0;
};

// What a thread needs to match, whatever the expression.
class Matcher {
 public:
  Matcher()
      : data_(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
        context_(pcre2_match_context_create(nullptr), &pcre2_match_context_free),
        stack_(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr), &pcre2_jit_stack_free) {
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }
  pcre2_match_data* data() const { return data_.get(); }
  pcre2_match_context* context() const { return context_.get(); }

 private:
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data_;
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context_;
  std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack_;
};

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int error) {
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(error, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

pcre2_code* compile(const std::string& original) {
  if (original.size() > kMaxPatternBytes) {
    refuse(original, fmt::format("{} bytes (limit {})", original.size(), kMaxPatternBytes));
  }
  const std::string pattern = pcre2_pattern(original);
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code =
      pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &where, nullptr);
  if (code == nullptr) refuse(original, message_of(error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is none, it is slower
  return code;
}

}  // namespace

// An expression, or a text that is not empty.
struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled, &pcre2_code_free) {}
  explicit Code(std::string_view literal) : code(nullptr, &pcre2_code_free), text(literal) {}
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code;
  std::string text = {};
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex Regex::of_pattern(const std::string& pattern) {
  Regex regex(std::make_unique<Code>(compile(pattern)));
  std::uint32_t may_be_empty = 0;
  pcre2_pattern_info(regex.code_->code.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) refuse(pattern, "matches the empty text, which is not supported");
  return regex;
}

Regex Regex::of_literal(std::string_view text) {
  if (text.empty()) throw CheckpointError("an empty text to look for");
  return Regex(std::make_unique<Code>(text));
}

std::optional<TextRange> Regex::find(std::string_view text, std::size_t from) const {
  WorkLimit::check();
  if (!code_->text.empty()) {
    const std::size_t at = text.find(code_->text, from);
    return at == std::string_view::npos ? std::nullopt : std::optional(TextRange{at, at + code_->text.size()});
  }
  static thread_local const Matcher matcher;
  const int found = pcre2_match(code_->code.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK, matcher.data(),
                                matcher.context());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    throw RequestError(400, "invalid_request",
                       fmt::format("the text is too repetitive to be cut: {}", message_of(found)));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(matcher.data());
  return TextRange{ends[0], ends[1]};
}

std::string pcre2_pattern(const std::string& pattern) { return Translator(pattern).run(); }

}  // namespace computron
