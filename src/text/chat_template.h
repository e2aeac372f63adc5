// Chat templates: programs in Jinja that come with tokenizers and write a conversation as text. They come from
// anywhere, so that what they may cost is bounded, and are rendered to the bytes that Jinja2 gives with transformers'
// settings.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "src/text/template_value.h"

namespace computron {

// What a template refuses by raise_exception(), in its own words.
struct TemplateRefusal {
  std::string words;
  int message = -1;  // which of the conversation's its loop was at; -1: none
};

class ChatTemplate {
 public:
  // jinja::TemplateError naming the line and the first thing there that is not known.
  explicit ChatTemplate(std::string_view text);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `variables`: what the template finds by name. Its strftime_now() says `date`, at midnight; `bytes` of conversation
  // say how much work it may make. Throws TemplateRefusal, and jinja::TemplateError where it cannot go on.
  std::string render(const jinja::Entries& variables, std::chrono::year_month_day date, std::size_t bytes) const;

 private:
  struct Body;
  std::unique_ptr<const Body> body_;
};

}  // namespace computron
