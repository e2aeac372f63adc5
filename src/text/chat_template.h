// What a chat template (Jinja, as tokenizers carry them) prints: its {{ }} expressions as sums of literals and names.
// Not what decides between them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace computron {

struct TemplateTerm {
  bool literal = false;
  std::string text;  // a literal's own; else without spaces: "eos_token", "message['content']|trim"

  bool operator==(const TemplateTerm&) const = default;
};
// A sum; empty where an expression is anything but that.
using TemplateSum = std::vector<TemplateTerm>;

std::vector<TemplateSum> printed_by(std::string_view chat_template);

}  // namespace computron
