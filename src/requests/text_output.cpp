#include "src/requests/text_output.h"

#include <fmt/format.h>

#include <utility>

#include "computron/base/utf8.h"

namespace computron {
namespace {

class StopWatch : public TokenWatch {
 public:
  StopWatch(std::shared_ptr<const Tokenizer> tokenizer, GeneratedText text)
      : tokenizer_(std::move(tokenizer)), text_(std::move(text)) {}
  bool ends_with(TokenId token) override { return text_.push(token); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;  // the text borrows it
  GeneratedText text_;
};

GeneratedText generated_text(const TextOutput& output, std::size_t part) {
  return {*output.tokenizer, output.prompt_of(part).context, output.stops, output.min_tokens};
}

// The text of a prompt's tokens, and where in it each begins.
std::string decoded(const std::vector<ScoredToken>& tokens, const Tokenizer& tokenizer,
                    std::vector<std::size_t>& offsets) {
  GeneratedText text(tokenizer, {}, {}, 0);
  for (const ScoredToken& token : tokens) {
    offsets.push_back(text.characters());
    text.push(token.token);
  }
  text.finish();
  return text.text();
}

}  // namespace

std::shared_ptr<TokenWatch> make_stop_watch(const TextOutput& output, std::size_t part) {
  if (output.stops.empty()) return nullptr;
  return std::make_shared<StopWatch>(output.tokenizer, generated_text(output, part));
}

ChoiceText choice_text(const Completion& completion, const TextOutput& output, std::size_t part, bool offsets) {
  ChoiceText choice;
  if (output.tokenizer == nullptr) {
    choice.offsets.resize(completion.prompt.size() + completion.tokens.size());
    return choice;
  }
  if (!completion.prompt.empty()) {
    const std::string prompt = decoded(completion.prompt, *output.tokenizer, choice.offsets);
    const std::string& given = output.prompt_of(part).text;
    choice.text = given.empty() || offsets ? prompt : given;
  }
  const std::size_t before = count_characters(choice.text);
  GeneratedText generated = generated_text(output, part);
  for (const ScoredToken& token : completion.tokens) {
    choice.offsets.push_back(before + generated.characters());
    generated.push(token.token);
  }
  generated.finish();
  choice.text += generated.text();
  choice.stopped = generated.stopped();
  return choice;
}

std::string token_name(TokenId token, const TextOutput& output) {
  if (output.tokenizer == nullptr) return fmt::format("token:{}", token);
  const std::string bytes = output.tokenizer->token_bytes(token);
  if (is_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const unsigned char byte : bytes) name += fmt::format("\\x{:02x}", byte);
  return name;
}

}  // namespace computron
