// The chat formats that are known by name: templates for tokenizers that come without one, or with one that is not to
// be used.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace computron {

struct BuiltInFormat {
  std::string_view name;
  std::string text;                 // in Jinja, by the published rules
  std::string_view bos, eos;        // where the tokenizer names none
  std::chrono::year_month_day day;  // that it says it is
  // A tokenizer without a template has this format if it has all of these added tokens and none of those.
  std::vector<std::string_view> tokens = {}, without = {};
};

std::span<const BuiltInFormat> built_in_formats();
const BuiltInFormat* find_built_in_format(std::string_view name);

}  // namespace computron
