#include "computron/text/chat_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/printable.h"
#include "src/text/chat_template.h"
#include "src/text/unicode.h"

namespace computron {
namespace {

using Messages = std::span<const ChatMessage>;

bool has_all(const Tokenizer& tokenizer, std::initializer_list<std::string_view> tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [&](std::string_view t) { return tokenizer.has_added_token(t); });
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

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

// meta-llama/Meta-Llama-3-8B-Instruct; from 3.1 on with dates in front of the system's words. 3.2's template says the
// day it is; here it is always the one that 3.1's says, so that a job that is run again asks the same.
std::string llama3_prompt(Messages messages, const std::string& begin, bool dates) {
  const auto block = [](std::string_view role, std::string_view content) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", role, without_outer_space(content));
  };
  std::string text = begin;
  if (dates) {
    std::string system = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    if (!messages.empty() && messages[0].role == "system") {
      system += without_outer_space(messages[0].content);
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

// mistralai/Mistral-7B-Instruct, mistralai/Mistral-Nemo-Instruct-2407 and mistralai/Ministral-8B-Instruct-2410: one
// conversation, and in every revision of a template other spaces in it.
std::string mistral_prompt(Messages messages, const std::string& begin, const std::string& end,
                           const MistralPieces& pieces) {
  std::string text = begin;
  const std::size_t first = !messages.empty() && messages[0].role == "system" ? 1 : 0;
  if (first == 1 && pieces.system == MistralPieces::kNone) refuse(0, "this model's format has no system message");
  const std::string system = first == 1 ? fmt::format("{}\n\n", messages[0].content) : "";
  for (std::size_t i = first; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    const bool question = (i - first) % 2 == 0;
    if (messages[i].role != (question ? "user" : "assistant")) {
      refuse(i, fmt::format("after an optional system message user and assistant take turns; it is the {}'s",
                            question ? "user" : "assistant"));
    }
    const bool takes_system = pieces.system == MistralPieces::kLast ? i + 1 == messages.size() : i == first;
    text += question
                ? fmt::format("{}{}{}{}", pieces.before_question, takes_system ? system : "", content,
                              pieces.behind_question)
                : fmt::format("{}{}{}{}", pieces.before_answer,
                              pieces.trims_answer ? without_outer_space(content) : content, end, pieces.behind_answer);
  }
  return text;
}

constexpr std::string_view kContents[] = {"message['content']", "message.content"};

bool is_content(const TemplateTerm& term, std::string_view filter = "") {
  return !term.literal && std::any_of(std::begin(kContents), std::end(kContents), [&](std::string_view content) {
    return term.text.starts_with(content) && term.text.substr(content.size()) == filter;
  });
}

bool is_literal(const TemplateTerm& term, std::initializer_list<std::string_view> texts) {
  return term.literal && std::find(texts.begin(), texts.end(), term.text) != texts.end();
}

// "[INST] " + [system_message + "\n\n" +] message['content'] + "[/INST]", with or without spaces.
bool read_question(TemplateSum sum, MistralPieces& pieces) {
  if (sum.size() == 5 && sum[1] == TemplateTerm{false, "system_message"} && is_literal(sum[2], {"\n\n"})) {
    sum.erase(sum.begin() + 1, sum.begin() + 3);
  }
  if (sum.size() != 3 || !is_content(sum[1])) return false;
  if (!is_literal(sum[0], {"[INST]", "[INST] ", " [INST] "}) || !is_literal(sum[2], {"[/INST]", " [/INST]"}))
    return false;
  const bool same = pieces.before_question.empty() ||
                    (pieces.before_question == sum[0].text && pieces.behind_question == sum[2].text);
  pieces.before_question = sum[0].text;
  pieces.behind_question = sum[2].text;
  return same;
}

// [" " +] message['content'][|trim] + eos_token [+ " "].
bool read_answer(TemplateSum sum, MistralPieces& pieces) {
  const bool space_before = is_literal(sum.front(), {" "}), space_behind = is_literal(sum.back(), {" "});
  if (space_before) sum.erase(sum.begin());
  if (space_behind && !sum.empty()) sum.pop_back();
  if (sum.size() != 2 || sum[1] != TemplateTerm{false, "eos_token"}) return false;
  pieces.trims_answer = is_content(sum[0], "|trim");
  pieces.before_answer.assign(space_before ? 1 : 0, ' ');
  pieces.behind_answer.assign(space_behind ? 1 : 0, ' ');
  return pieces.trims_answer || is_content(sum[0]);
}

// What a template of Mistral's puts around messages; nothing if it is another's.
std::optional<MistralPieces> read_mistral_template(const std::string& text) {
  MistralPieces pieces;
  bool answers = false;
  for (const TemplateSum& sum : printed_by(text)) {
    const auto names = [&sum](std::string_view filter) {
      return std::any_of(sum.begin(), sum.end(), [&](const TemplateTerm& term) { return is_content(term, filter); });
    };
    if (!names("") && !names("|trim")) continue;  // tools, or a token
    if (read_question(sum, pieces)) continue;
    if (answers || !read_answer(sum, pieces)) return std::nullopt;
    answers = true;
  }
  if (pieces.before_question.empty() || !answers) return std::nullopt;
  pieces.system = !contains(text, "system_message")                ? MistralPieces::kNone
                  : contains(text, "loop.last and system_message") ? MistralPieces::kLast
                                                                   : MistralPieces::kFirst;
  return pieces;
}

// mistralai/Mistral-7B-Instruct-v0.3, for a tokenizer that came without a template.
MistralPieces mistral_v3() {
  return {.before_question = "[INST] ",
          .behind_question = "[/INST]",
          .before_answer = " ",
          .trims_answer = true,
          .behind_answer = "",
          .system = MistralPieces::kLast};
}

std::string or_else(const std::string& text, std::string_view fallback) {
  return text.empty() ? std::string(fallback) : text;
}

constexpr std::string_view kQwen2System = "You are a helpful assistant.";
constexpr std::string_view kQwen25System = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// A template that came along must be of the family that the tokens are of: others have put theirs over the same tokens.
bool says(const std::string& given, const std::string& text) { return given.empty() || contains(given, text); }

}  // namespace

std::string_view ChatFormat::known_formats() {
  return "Llama-3 (<|start_header_id|>, <|eot_id|>), Qwen2 (<|im_start|>, <|im_end|>) and Mistral ([INST], [/INST])";
}

std::optional<ChatFormat> ChatFormat::recognise(const Tokenizer& tokenizer) {
  const std::string& given = tokenizer.chat_template();
  if (has_all(tokenizer, {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}) &&
      says(given, "<|start_header_id|>")) {
    const bool dates = given.empty() ? has_all(tokenizer, {"<|eom_id|>"}) : contains(given, "Cutting Knowledge Date");
    return ChatFormat(dates ? kLlama31 : kLlama3, "<|begin_of_text|>", "<|eot_id|>");
  }
  if (has_all(tokenizer, {"<|im_start|>", "<|im_end|>"})) return recognise_qwen(tokenizer);
  const std::string begin = or_else(tokenizer.bos_token(), "<s>"), end = or_else(tokenizer.eos_token(), "</s>");
  if (!has_all(tokenizer, {begin, end}) || has_all(tokenizer, {"[SYSTEM_PROMPT]"})) return std::nullopt;
  const bool tokens = has_all(tokenizer, {"[INST]", "[/INST]"});
  const auto pieces = given.empty() && tokens ? mistral_v3() : read_mistral_template(given);
  if (!pieces) return std::nullopt;
  ChatFormat format(kMistral, begin, end);
  format.mistral_ = *pieces;
  return format;
}

// Qwen2 and 2.5 differ in how they introduce themselves; who says something else is another.
std::optional<ChatFormat> ChatFormat::recognise_qwen(const Tokenizer& tokenizer) {
  const std::string& given = tokenizer.chat_template();
  if (!has_all(tokenizer, {"<|endoftext|>"}) || has_all(tokenizer, {"<think>"})) return std::nullopt;
  const auto introduces = [&given](std::string_view system) {
    return contains(given, fmt::format("<|im_start|>system\\n{}<|im_end|>", system)) ||
           contains(given, fmt::format("<|im_start|>system\n{}<|im_end|>", system));
  };
  const bool newer = given.empty() ? has_all(tokenizer, {"<tool_call>"}) : introduces(kQwen25System);
  if (!given.empty() && !newer && !introduces(kQwen2System)) return std::nullopt;
  return ChatFormat(newer ? kQwen25 : kQwen2, "", "<|im_end|>");
}

std::string ChatFormat::prompt(std::span<const ChatMessage> messages) const {
  check_roles(messages);
  switch (kind_) {
    case kLlama3:
      return llama3_prompt(messages, begin_, /*dates=*/false);
    case kLlama31:
      return llama3_prompt(messages, begin_, /*dates=*/true);
    case kQwen2:
      return qwen_prompt(messages, kQwen2System);
    case kQwen25:
      return qwen_prompt(messages, kQwen25System);
    case kMistral:
      break;
  }
  return mistral_prompt(messages, begin_, end_, mistral_);
}

}  // namespace computron
