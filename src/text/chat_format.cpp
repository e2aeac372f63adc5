#include "computron/text/chat_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "computron/base/json_text.h"
#include "computron/base/printable.h"
#include "src/text/built_in_formats.h"
#include "src/text/chat_template.h"
#include "src/text/unicode.h"

namespace computron {
namespace {

using jinja::TemplateError;
using Messages = std::span<const ChatMessage>;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw RequestError(400, "invalid_request", fmt::format("body.messages{}: {}", where, why));
}

std::string at(std::size_t message) { return fmt::format("[{}]", message); }

template <class Texts>
std::string joined(const Texts& texts, std::string_view separator) {
  std::string all;
  for (const auto& text : texts) all.append(&text == &texts.front() ? "" : separator).append(text);
  return all;
}

// Parts are joined as vLLM does it where the template takes content as text only.
std::string text_of(const ChatMessage& message) {
  return message.parts.empty() ? message.content : joined(message.parts, "\n");
}

jinja::Value content_of(const ChatMessage& message, bool as_parts) {
  if (message.parts.empty() || !as_parts) return text_of(message);
  jinja::List parts;
  for (const std::string& part : message.parts) {
    parts.emplace_back(jinja::Entries{{"type", jinja::Value("text")}, {"text", jinja::Value(part)}});
  }
  return parts;
}

jinja::Value value_of(const ChatMessage& message, std::size_t index, bool as_parts) {
  jinja::Entries fields = {{"role", jinja::Value(message.role)}, {"content", content_of(message, as_parts)}};
  if (message.reasoning) {
    fields.emplace_back("reasoning_content", *message.reasoning);
    fields.emplace_back("thinking", *message.reasoning);  // gpt-oss's name of it
  }
  return {std::move(fields), static_cast<int>(index)};
}

const BuiltInFormat* format_by_tokens(const Tokenizer& tokenizer) {
  const auto has = [&](std::string_view token) { return tokenizer.has_added_token(token); };
  for (const BuiltInFormat& format : built_in_formats()) {
    if (format.tokens.empty() || !std::all_of(format.tokens.begin(), format.tokens.end(), has)) continue;
    if (std::none_of(format.without.begin(), format.without.end(), has)) return &format;
  }
  return nullptr;
}

// The day that the family of a template is told to be today.
ChatFormat::Date day_of(std::string_view text) {
  const char* name = contains(text, "<|channel|>")         ? "gpt-oss"
                     : contains(text, "<|start_of_role|>") ? "granite3"
                                                           : "llama3.1";
  return find_built_in_format(name)->day;
}

std::string or_else(const std::string& text, std::string_view fallback) {
  return text.empty() ? std::string(fallback) : text;
}

// The added token at the beginning of `text`, the longest if there are several; empty: none.
std::string token_at(std::string_view text, const Tokenizer& tokenizer) {
  constexpr std::size_t kLongest = 64;
  for (std::size_t bytes = std::min(text.size(), kLongest); bytes > 0; --bytes) {
    if (tokenizer.has_added_token(text.substr(0, bytes))) return std::string(text.substr(0, bytes));
  }
  return "";
}

// The rendered conversation up to where its last message's content ends, as transformers cuts it.
std::string without_end(std::string text, const ChatMessage& last) {
  const std::string content = last.parts.empty() ? last.content : last.parts.back();
  const std::string_view words = without_outer_space(content);
  const std::size_t found = words.empty() ? std::string::npos : text.rfind(words);
  if (found == std::string::npos) {
    throw RequestError(400, "invalid_request",
                       "body.continue_final_message: the chat template does not print the last message's content");
  }
  const std::string_view from_words = std::string_view(content).substr(content.find(words));
  const bool keeps_space = std::string_view(text).substr(found).starts_with(from_words);
  text.resize(found + (keeps_space ? from_words.size() : words.size()));
  return text;
}

}  // namespace

struct ChatFormat::Rules {
  std::string name;
  ChatTemplate text;
  Date date;
  std::string bos, eos;
  bool takes_parts = false, has_developer = false, thinks = false, harmony = false;
  std::vector<std::string> ends = {};

  std::string render(Messages messages, const ChatOptions& options) const;
  void check_roles(Messages messages) const;
  // The rendered probe; nothing if the template refuses such a conversation.
  std::optional<std::string> try_render(Messages messages, bool add_generation_prompt) const;
  std::vector<std::string> find_ends(const Tokenizer& tokenizer) const;
  bool finds_parts() const;
};

std::string ChatFormat::Rules::render(Messages messages, const ChatOptions& options) const {
  jinja::List list;
  std::size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    bytes += text_of(message).size();
    list.push_back(value_of(message, list.size(), takes_parts));
  }
  jinja::Entries variables;
  for (const auto& [key, value] : options.arguments) {
    variables.emplace_back(key, std::visit([](const auto& one) { return jinja::Value(one); }, value));
  }
  put(variables, "messages", std::move(list));
  put(variables, "tools", jinja::None{});
  put(variables, "documents", jinja::None{});
  put(variables, "add_generation_prompt", options.add_generation_prompt);
  if (!bos.empty()) put(variables, "bos_token", bos);
  if (!eos.empty()) put(variables, "eos_token", eos);
  return text.render(variables, date, bytes);
}

std::optional<std::string> ChatFormat::Rules::try_render(Messages messages, bool add_generation_prompt) const {
  try {
    return render(messages, {.add_generation_prompt = add_generation_prompt});
  } catch (const TemplateRefusal&) {
    return std::nullopt;
  }
}

// What stands behind an answer.
std::vector<std::string> ChatFormat::Rules::find_ends(const Tokenizer& tokenizer) const {
  if (harmony) return {"<|return|>", "<|call|>"};
  const std::string answer = "an.answer:to_find";
  const std::vector<ChatMessage> talk = {{.role = "user", .content = "a question"},
                                         {.role = "assistant", .content = answer},
                                         {.role = "user", .content = "another"}};
  const auto rendered = try_render(talk, /*add_generation_prompt=*/true);
  const std::size_t found = rendered ? rendered->rfind(answer) : std::string::npos;
  std::string token;
  if (found != std::string::npos) {
    const std::string_view behind = std::string_view(*rendered).substr(found + answer.size());
    token = token_at(behind.substr(std::min(behind.find_first_not_of(" \n"), behind.size())), tokenizer);
  }
  if (token.empty()) token = eos;
  return token.empty() ? std::vector<std::string>() : std::vector{token};
}

// A template that does not go through content as a list refuses one, or prints nothing of it.
bool ChatFormat::Rules::finds_parts() const {
  const std::vector<ChatMessage> probe = {{.role = "user", .parts = {"first.part", "second.part"}}};
  try {
    const auto rendered = try_render(probe, /*add_generation_prompt=*/true);
    return rendered && contains(*rendered, "first.part") && contains(*rendered, "second.part");
  } catch (const TemplateError&) {
    return false;
  }
}

void ChatFormat::Rules::check_roles(Messages messages) const {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    if (role == "developer" && has_developer) continue;
    if (role == "tool" || role == "function") {
      refuse(at(i), fmt::format("the role '{}': tools are not served", role));
    }
    refuse(at(i), fmt::format("the role must be system, user or assistant (got '{}')", printable(role)));
  }
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer, std::string_view name, std::optional<Date> date) try {
  const std::string& given = tokenizer.chat_template();
  const BuiltInFormat* format = nullptr;
  if (!name.empty() || given.empty()) {
    format = name.empty() ? format_by_tokens(tokenizer) : find_built_in_format(name);
    if (format == nullptr) {
      throw ConfigError(name.empty() ? "there is no chat template, and no known format has its special tokens"
                                     : fmt::format("no chat format is called {}", shown(name)));
    }
  }
  const std::string_view text = format == nullptr ? std::string_view(given) : format->text;
  Rules rules{.name = format == nullptr ? "template" : std::string(format->name),
              .text = ChatTemplate(text),
              .date = date.value_or(format == nullptr ? day_of(text) : format->day),
              .bos = or_else(tokenizer.bos_token(), format == nullptr ? "" : format->bos),
              .eos = or_else(tokenizer.eos_token(), format == nullptr ? "" : format->eos)};
  rules.has_developer = contains(text, "developer");
  rules.harmony = contains(text, "<|channel|>analysis");
  rules.thinks = contains(text, "</think>") || contains(text, "<think>");
  rules.try_render(std::vector<ChatMessage>{{.role = "user", .content = "a question"}}, /*add_generation_prompt=*/true);
  rules.takes_parts = true;  // for the probe
  rules.takes_parts = rules.finds_parts();
  rules.ends = rules.find_ends(tokenizer);
  rules_ = std::make_unique<const Rules>(std::move(rules));
} catch (const TemplateError& error) {
  throw ConfigError(fmt::format("its chat template cannot be used: {}", error.what()));
}

ChatFormat::~ChatFormat() = default;
ChatFormat::ChatFormat(ChatFormat&&) noexcept = default;

const std::string& ChatFormat::name() const { return rules_->name; }
const std::vector<std::string>& ChatFormat::end_tokens() const { return rules_->ends; }

std::string ChatFormat::known_names() {
  std::vector<std::string_view> names;
  for (const BuiltInFormat& format : built_in_formats()) names.push_back(format.name);
  std::sort(names.begin(), names.end());
  return joined(names, ", ");
}

bool ChatFormat::is_known(std::string_view name) { return find_built_in_format(name) != nullptr; }

ChatPrompt ChatFormat::prompt(Messages messages, const ChatOptions& options) const {
  rules_->check_roles(messages);
  ChatPrompt prompt;
  try {
    prompt.text = rules_->render(messages, options);
  } catch (const TemplateRefusal& refusal) {
    refuse(refusal.message < 0 ? "" : at(static_cast<std::size_t>(refusal.message)),
           fmt::format("the chat template refuses it: {}", printable(refusal.words)));
  } catch (const TemplateError& error) {
    refuse("", fmt::format("the chat template cannot write this conversation: {}", error.what()));
  }
  if (options.continue_final_message) prompt.text = without_end(std::move(prompt.text), messages.back());
  if (rules_->harmony) {
    prompt.reasoning = Reasoning::kHarmony;
  } else if (rules_->thinks) {
    const std::size_t opened = prompt.text.rfind("<think>"), closed = prompt.text.rfind("</think>");
    const bool open = without_outer_space(prompt.text).ends_with("<think>") ||
                      (options.continue_final_message && opened != std::string::npos &&
                       (closed == std::string::npos || closed < opened));
    prompt.reasoning = open ? Reasoning::kOpenThink : Reasoning::kThink;
  }
  return prompt;
}

std::optional<ChatFormat::Date> parse_date(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
  const auto number = [&text](std::size_t begin, std::size_t digits) {
    unsigned value = 0;
    const char* const first = text.data() + begin;
    const auto [end, error] = std::from_chars(first, first + digits, value);
    return error == std::errc{} && end == first + digits ? value : 0;
  };
  const ChatFormat::Date date(std::chrono::year(static_cast<int>(number(0, 4))), std::chrono::month(number(5, 2)),
                              std::chrono::day(number(8, 2)));
  if (!date.ok() || number(0, 4) == 0) return std::nullopt;
  return date;
}

}  // namespace computron
