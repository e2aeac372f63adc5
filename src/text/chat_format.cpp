#include "computron/text/chat_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/printable.h"
#include "computron/text/utf8.h"
#include "src/text/unicode.h"

namespace computron {
namespace {

using Messages = std::span<const ChatMessage>;

bool has_all(const Tokenizer& tokenizer, std::initializer_list<std::string_view> tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [&](std::string_view t) { return tokenizer.has_added_token(t); });
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string_view trimmed(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    if (is_white_space(next_character(text, at))) continue;
    begin = std::min(begin, here);
    end = at;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

[[noreturn]] void refuse(std::size_t message, const std::string& why) {
  throw RequestError(400, "invalid_request", fmt::format("body.messages[{}]: {}", message, why));
}

void check_roles(Messages messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    refuse(i, fmt::format("the role must be system, user or assistant (got '{}')", printable(role)));
  }
}

// meta-llama/Meta-Llama-3-8B-Instruct; from 3.1 on with dates in front of the system's words.
std::string llama3_prompt(Messages messages, const std::string& begin, bool dates) {
  const auto block = [](std::string_view role, std::string_view content) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", role, trimmed(content));
  };
  std::string text = begin;
  if (dates) {
    std::string system = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    if (!messages.empty() && messages[0].role == "system") {
      system += trimmed(messages[0].content);
      messages = messages.subspan(1);
    }
    text += fmt::format("<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>", system);
  }
  for (const ChatMessage& message : messages) text += block(message.role, message.content);
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

// Qwen/Qwen2-7B-Instruct and Qwen/Qwen2.5-7B-Instruct, which introduce themselves where nobody does it for them.
std::string qwen_prompt(Messages messages, std::string_view default_system) {
  std::string text;
  if (messages.empty() || messages[0].role != "system") {
    text += fmt::format("<|im_start|>system\n{}<|im_end|>\n", default_system);
  }
  for (const ChatMessage& message : messages) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
  }
  return text + "<|im_start|>assistant\n";
}

// How the three of Mistral's formats differ.
struct MistralSpaces {
  std::string_view before, inside, behind, answer;  // of [INST], in it on both sides, and before an answer
  bool system_last;                                 // the system's words go to the last question instead of the first
};

// mistralai/Mistral-7B-Instruct-v0.2, -v0.3 and mistralai/Ministral-8B-Instruct-2410.
std::string mistral_prompt(Messages messages, const std::string& begin, const std::string& end,
                           const MistralSpaces& spaces) {
  std::string text = begin;
  std::string system;
  const std::size_t first = !messages.empty() && messages[0].role == "system" ? 1 : 0;
  if (first == 1) system = messages[0].content + "\n\n";
  for (std::size_t i = first; i < messages.size(); ++i) {
    const bool question = (i - first) % 2 == 0;
    if (messages[i].role != (question ? "user" : "assistant")) {
      refuse(i, fmt::format("after an optional system message user and assistant take turns; it is the {}'s",
                            question ? "user" : "assistant"));
    }
    const bool takes_system = spaces.system_last ? i + 1 == messages.size() : i == first;
    text += question ? fmt::format("{}[INST]{}{}{}{}[/INST]", spaces.before, spaces.inside, takes_system ? system : "",
                                   messages[i].content, spaces.behind)
                     : fmt::format("{}{}{}", spaces.answer, messages[i].content, end);
  }
  return text;
}

constexpr MistralSpaces kV1 = {" ", " ", " ", " ", false};
constexpr MistralSpaces kV3 = {"", " ", "", " ", true};
constexpr MistralSpaces kTekken = {"", "", "", "", true};

std::string or_else(const std::string& text, std::string_view fallback) {
  return text.empty() ? std::string(fallback) : text;
}

}  // namespace

std::string_view ChatFormat::known_formats() {
  return "Llama-3 (<|start_header_id|>, <|eot_id|>), Qwen2 (<|im_start|>, <|im_end|>) and Mistral ([INST], [/INST])";
}

std::optional<ChatFormat> ChatFormat::recognise(const Tokenizer& tokenizer) {
  const std::string& given = tokenizer.chat_template();
  if (has_all(tokenizer, {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})) {
    const bool dates = given.empty() ? has_all(tokenizer, {"<|eom_id|>"}) : contains(given, "Cutting Knowledge Date");
    return ChatFormat(dates ? kLlama31 : kLlama3, "<|begin_of_text|>", "<|eot_id|>");
  }
  if (has_all(tokenizer, {"<|im_start|>", "<|im_end|>"})) {
    if (!has_all(tokenizer, {"<|endoftext|>"}) || has_all(tokenizer, {"<think>"})) return std::nullopt;
    const bool newer = given.empty() ? has_all(tokenizer, {"<tool_call>"}) : contains(given, "You are Qwen");
    return ChatFormat(newer ? kQwen25 : kQwen2, "", "<|im_end|>");
  }
  const std::string begin = or_else(tokenizer.bos_token(), "<s>"), end = or_else(tokenizer.eos_token(), "</s>");
  if (!has_all(tokenizer, {begin, end}) || has_all(tokenizer, {"[SYSTEM_PROMPT]"})) return std::nullopt;
  if (has_all(tokenizer, {"[INST]", "[/INST]"})) {
    const bool tight = contains(given, "'[INST]' +") || contains(given, "\"[INST]\" +");
    return ChatFormat(tight ? kMistralTekken : kMistralV3, begin, end);
  }
  if (contains(given, "[INST]") && !contains(given, "<<SYS>>")) return ChatFormat(kMistralV1, begin, end);
  return std::nullopt;
}

std::string ChatFormat::prompt(std::span<const ChatMessage> messages) const {
  check_roles(messages);
  switch (kind_) {
    case kLlama3:
      return llama3_prompt(messages, begin_, /*dates=*/false);
    case kLlama31:
      return llama3_prompt(messages, begin_, /*dates=*/true);
    case kQwen2:
      return qwen_prompt(messages, "You are a helpful assistant.");
    case kQwen25:
      return qwen_prompt(messages, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
    case kMistralV1:
      return mistral_prompt(messages, begin_, end_, kV1);
    case kMistralV3:
      return mistral_prompt(messages, begin_, end_, kV3);
    case kMistralTekken:
      break;
  }
  return mistral_prompt(messages, begin_, end_, kTekken);
}

}  // namespace computron
