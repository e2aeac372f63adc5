#include "src/requests/text_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
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

// Characters [begin, end) of a text.
std::string characters(std::string_view text, std::size_t begin, std::size_t end) {
  std::size_t at = 0, count = 0;
  for (; count < begin && at < text.size(); ++count) next_character(text, at);
  const std::size_t first = at;
  for (; count < end && at < text.size(); ++count) next_character(text, at);
  return std::string(text.substr(first, at - first));
}

// <think>thoughts</think>answer, as vLLM cuts it: what stands around the marks stays.
ChatAnswer thinking_answer(const std::string& text, bool opened) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool begins = first != std::string::npos && std::string_view(text).substr(first).starts_with(kBegin);
  if (!opened && !begins) return {.content = text, .reasoning = std::nullopt};
  const std::size_t begin = begins ? first + kBegin.size() : 0, end = text.find(kEnd, begin);
  ChatAnswer answer{.content = std::nullopt, .reasoning = text.substr(begin, end - begin)};
  if (end != std::string::npos && end + kEnd.size() < text.size()) answer.content = text.substr(end + kEnd.size());
  return answer;
}

// Cuts the text of gpt-oss's messages out of that of all tokens:
//   <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
// What is on the channel final is the answer; analysis and commentary, a line each, are thoughts.
class HarmonyReader {
 public:
  HarmonyReader(const std::string& text, const Tokenizer& tokenizer) : text_(text) {
    channel_ = tokenizer.token_id("<|channel|>");
    message_ = tokenizer.token_id("<|message|>");
    for (const char* end : {"<|end|>", "<|return|>", "<|call|>", "<|start|>"}) {
      if (const auto token = tokenizer.token_id(end)) ends_.push_back(*token);
    }
  }

  // A token whose text is [begin, end).
  void take(TokenId token, std::size_t begin, std::size_t end) {
    if (token == channel_) {
      finish(begin);
      header_ = end;
    } else if (token == message_) {
      finish(begin);
      if (header_) name_ = characters(text_, *header_, begin);
      header_.reset();
      body_ = end;
    } else if (std::find(ends_.begin(), ends_.end(), token) != ends_.end()) {
      finish(begin);
      header_.reset();
      name_ = kFinal;
    } else if (!header_ && !body_ && !seen_) {
      body_ = begin;  // the prompt has opened a message
    }
    seen_ = true;
  }

  ChatAnswer answer(std::size_t end) {
    finish(end);
    return std::move(answer_);
  }

 private:
  static constexpr std::string_view kFinal = "final";

  void finish(std::size_t end) {
    if (!body_) return;
    const std::string body = characters(text_, *body_, end);
    body_.reset();
    if (name_.starts_with(kFinal)) {
      answer_.content = answer_.content.value_or("") + body;
    } else {
      answer_.reasoning = answer_.reasoning ? *answer_.reasoning + "\n" + body : body;
    }
  }

  const std::string& text_;
  std::optional<TokenId> channel_, message_;
  std::vector<TokenId> ends_;
  std::string name_{kFinal};                  // of the message's channel
  std::optional<std::size_t> header_, body_;  // where the open one began, in characters
  bool seen_ = false;
  ChatAnswer answer_;
};

ChatAnswer harmony_answer(const Completion& completion, const TextOutput& output, const ChoiceText& choice) {
  const std::size_t all = count_characters(choice.text);
  HarmonyReader reader(choice.text, *output.tokenizer);
  for (std::size_t i = 0; i < completion.tokens.size(); ++i) {
    const std::size_t begin = std::min(choice.offsets[i], all);
    const std::size_t end = i + 1 < completion.tokens.size() ? std::min(choice.offsets[i + 1], all) : all;
    reader.take(completion.tokens[i].token, begin, end);
  }
  return reader.answer(all);
}

}  // namespace

ChatAnswer chat_answer(const Completion& completion, const TextOutput& output, const ChoiceText& choice) {
  switch (output.reasoning) {
    case Reasoning::kNone:
      return {.content = choice.text, .reasoning = std::nullopt};
    case Reasoning::kHarmony:
      return harmony_answer(completion, output, choice);
    default:
      return thinking_answer(choice.text, output.reasoning == Reasoning::kOpenThink);
  }
}

std::shared_ptr<TokenWatch> make_stop_watch(const TextOutput& output, std::size_t part) {
  if (output.stops.empty()) return nullptr;
  return std::make_shared<StopWatch>(output.tokenizer, generated_text(output, part));
}

ChoiceText choice_text(const Completion& completion, const TextOutput& output, std::size_t part, bool offsets) {
  ChoiceText choice;
  if (output.tokenizer == nullptr) {
    choice.offsets.resize((output.echo ? completion.prompt.size() : 0) + completion.tokens.size());
    return choice;
  }
  if (output.echo && !completion.prompt.empty()) {
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
