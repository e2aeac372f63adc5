// Any text as a chat template: refused naming what is not known, or a program that writes some conversation or says why
// it does not, and ends.
#include "src/text/chat_template.h"

#include <cstdint>
#include <string>
#include <string_view>

#include "computron/base/utf8.h"
#include "tests/fuzz/expect.h"

namespace {

namespace jinja = computron::jinja;

jinja::Value message(const char* role, const char* content, int index) {
  return {jinja::Entries{{"role", role}, {"content", content}}, index};
}

jinja::Entries conversation() {
  return {{"messages", jinja::List{message("system", " Be brief. ", 0), message("user", "Hi \xC3\xA9\n", 1),
                                   message("assistant", "<think>x</think>Yes?", 2), message("user", "a-b-c", 3)}},
          {"tools", jinja::None{}},
          {"add_generation_prompt", true},
          {"bos_token", "<s>"},
          {"eos_token", "</s>"}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const computron::ChatTemplate text(std::string_view(reinterpret_cast<const char*>(data), size));
    const auto day = std::chrono::year(2024) / 7 / 26;
    expect(computron::is_utf8(text.render(conversation(), day, /*bytes=*/64)), "what is written is UTF-8");
  } catch (const jinja::TemplateError&) {
  } catch (const computron::TemplateRefusal&) {
  }
  return 0;
}
