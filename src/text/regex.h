// Regular expressions of tokenizer files (Oniguruma's syntax), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace computron {

inline constexpr std::size_t kMaxPatternBytes = 4096;

struct TextRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

class Regex {
 public:
  // A regular expression, or a text that stands for itself. CheckpointError naming what of it is not supported, or that
  // it matches the empty text.
  static Regex of_pattern(const std::string& pattern);
  static Regex of_literal(std::string_view text);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The leftmost match in well-formed UTF-8 at or behind `from`. Thread-safe. RequestError if this takes too many
  // steps: there are texts and expressions with which it would never end.
  std::optional<TextRange> find(std::string_view text, std::size_t from) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// The same expression in PCRE2's syntax, with the classes of characters as the tokenizers' own library has them.
// Throws as Regex::of_pattern.
std::string pcre2_pattern(const std::string& pattern);

}  // namespace computron
