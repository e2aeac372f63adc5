#include "src/requests/text_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "computron/base/json_text.h"
#include "computron/text/chat_format.h"
#include "src/requests/request_check.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 1024;
constexpr std::size_t kMaxMessages = kMaxInputs;  // as many objects of a list are kept

[[noreturn]] void refuse_item(const JsonValue& prompt, const ServedModel& model) {
  if (prompt.odd_kind == Kind::kFloat) {
    invalid_parameter(fmt::format("body.prompt[{}]: token ids of {} are integers from 0 to {}", prompt.odd_index,
                                  model.id, model.config.vocab - 1));
  }
  invalid_request(fmt::format(
      "body.prompt[{}]: prompts are a list of token ids, of texts or of lists of token ids, of one kind only (got {})",
      prompt.odd_index, name_of(prompt.odd_kind)));
}

Prompt token_prompt(const JsonValue& list, const std::string& path, const ServedModel& model) {
  if (list.count == 0) invalid_parameter(fmt::format("{}: must hold at least one token id", path));
  if (list.has_odd_item) refuse_item(list, model);
  Prompt prompt{token_list(list, path, model)};
  prompt.tokens.resize(list.count);  // what was not kept is beyond any model's positions: this prompt is refused
  return prompt;
}

Prompt text_prompt(const std::string& text, const std::string& path, const ServedModel& model,
                   std::optional<Encoder>& encoder) {
  return {encode_text(text, path, model, encoder), text};
}

void check_count(std::size_t prompts) {
  if (prompts <= kMaxInputs) return;
  invalid_parameter(fmt::format("body.prompt: at most {} prompts a request (got {})", kMaxInputs, prompts));
}

std::vector<Prompt> list_of_prompts(const JsonValue& list, const ServedModel& model, std::optional<Encoder>& encoder) {
  std::vector<Prompt> prompts;
  const auto path = [&prompts] { return fmt::format("body.prompt[{}]", prompts.size()); };
  check_count(list.count);
  if (list.strings.size() == list.count) {
    for (const std::string& text : list.strings) prompts.push_back(text_prompt(text, path(), model, encoder));
  } else if (list.lists.size() == list.count) {
    for (const JsonValue& tokens : list.lists) prompts.push_back(token_prompt(tokens, path(), model));
  } else {
    refuse_item(list, model);
  }
  return prompts;
}

// The text of a part of a message's content.
const std::string& read_part(const JsonFields& part, const std::string& path) {
  const std::string& type = required_string(part, path + ".", "type");
  if (type != "text") {
    invalid_request(fmt::format("{}: only parts of the type 'text' are served (got {})", path, shown(type)));
  }
  return required_string(part, path + ".", "text");
}

std::vector<std::string> read_parts(const RequestDraft& draft, std::size_t message, const std::string& path) {
  const JsonValue& content = field(draft.messages[message], "content");
  std::vector<std::string> parts;
  for (const auto& [owner, part] : draft.parts) {
    if (owner == message) parts.push_back(read_part(part, fmt::format("{}[{}]", path, parts.size())));
  }
  if (content.count == 0) invalid_request(fmt::format("{}: must hold at least one part", path));
  if (draft.parts.size() >= kMaxMessages && parts.size() < content.count) {
    invalid_request(fmt::format("{}: at most {} parts a request", path, kMaxMessages));
  }
  if (parts.size() < content.count) invalid_request(fmt::format("{}: every part must be an object", path));
  return parts;
}

ChatMessage read_message(const RequestDraft& draft, std::size_t index) {
  const JsonFields& fields = draft.messages[index];
  const std::string prefix = fmt::format("body.messages[{}].", index);
  for (const char* name : {"tool_calls", "function_call", "tool_call_id"}) {
    const JsonValue& value = field(fields, name);
    if (value.kind == Kind::kNull || (value.kind == Kind::kList && value.count == 0)) continue;
    invalid_request(fmt::format("{}{}: tools are not served", prefix, name));
  }
  ChatMessage message{.role = required_string(fields, prefix, "role")};
  if (field(fields, "content").kind == Kind::kList) {
    message.parts = read_parts(draft, index, prefix + "content");
  } else {
    message.content = required_string(fields, prefix, "content");
  }
  if (field(fields, "reasoning_content").kind != Kind::kNull) {
    message.reasoning = required_string(fields, prefix, "reasoning_content");
  }
  return message;
}

std::vector<ChatMessage> read_messages(const RequestDraft& draft) {
  const JsonValue& list = field(draft.body, "messages");
  if (list.kind == Kind::kNull) invalid_request("body.messages: missing");
  if (list.kind != Kind::kList || list.count == 0 || list.count > kMaxMessages) {
    invalid_request(fmt::format("body.messages: must be a list of 1 to {} messages (got {})", kMaxMessages,
                                list.kind == Kind::kList ? fmt::format("{}", list.count) : describe(list)));
  }
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < draft.messages.size(); ++i) messages.push_back(read_message(draft, i));
  if (messages.size() != list.count) invalid_request("body.messages: every message must be an object");
  return messages;
}

// What a request tells the template. Names that the conversation itself has are not to be told.
void add_argument(const std::string& name, const JsonValue& value, ChatOptions& options) {
  constexpr std::string_view kTaken[] = {"messages",  "tools",    "documents", "add_generation_prompt",
                                         "bos_token", "eos_token"};
  const std::string path = fmt::format("body.chat_template_kwargs.{}", cut(name));
  if (std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken)) {
    invalid_parameter(fmt::format("{}: not to be given here", path));
  }
  switch (value.kind) {
    case Kind::kNull:
      return;
    case Kind::kBool:
      options.arguments[name] = value.boolean;
      return;
    case Kind::kInteger:
      options.arguments[name] = value.integer;
      return;
    case Kind::kFloat:
      options.arguments[name] = value.number;
      return;
    case Kind::kString:
      options.arguments[name] = value.text;
      return;
    default:
      invalid_parameter(fmt::format("{}: must be a boolean, a number or a text (got {})", path, describe(value)));
  }
}

// As vLLM has them.
ChatOptions chat_options(const RequestDraft& draft) {
  const OptionalFields body(draft.body);
  ChatOptions options;
  const JsonValue& arguments = field(draft.body, "chat_template_kwargs");
  if (arguments.kind != Kind::kNull && arguments.kind != Kind::kObject) {
    invalid_parameter(fmt::format("body.chat_template_kwargs: must be an object (got {})", describe(arguments)));
  }
  if (field(draft.body, "reasoning_effort").kind != Kind::kNull) {
    options.arguments["reasoning_effort"] = required_string(draft.body, "body.", "reasoning_effort");
  }
  for (const auto& [name, value] : draft.template_arguments) add_argument(name, value, options);
  const bool given = field(draft.body, "add_generation_prompt").kind != Kind::kNull;
  options.add_generation_prompt = !given || body.flag("add_generation_prompt");
  options.continue_final_message = body.flag("continue_final_message");
  if (options.add_generation_prompt && options.continue_final_message) {
    invalid_parameter("body.continue_final_message: body.add_generation_prompt must be false beside it");
  }
  return options;
}

}  // namespace

void check_vocabulary(const std::vector<TokenId>& tokens, std::string_view path, const ServedModel& model) {
  for (const TokenId token : tokens) {
    if (token < model.config.vocab) continue;
    invalid_request(fmt::format("{}: the tokenizer of {} makes token {} of it, beyond the model's {}", path, model.id,
                                token, model.config.vocab));
  }
}

std::vector<TokenId> encode_text(std::string_view text, std::string_view path, const ServedModel& model,
                                 std::optional<Encoder>& encoder, bool special_tokens) {
  if (!encoder) refuse_text(path, model);
  std::vector<TokenId> tokens;
  try {
    tokens = encoder->encode(text, special_tokens);
  } catch (const RequestError& error) {
    throw RequestError(error.status(), error.error_code(), fmt::format("{}: {}", path, error.what()));
  }
  if (tokens.empty()) invalid_parameter(fmt::format("{}: the text has no tokens", path));
  check_vocabulary(tokens, path, model);
  return tokens;
}

std::vector<Prompt> prompts_of(const JsonFields& body, const ServedModel& model, std::optional<Encoder>& encoder) {
  const JsonValue& prompt = field(body, "prompt");
  if (prompt.kind == Kind::kNull) invalid_request("body.prompt: missing");
  if (prompt.kind == Kind::kString) return {text_prompt(prompt.text, "body.prompt", model, encoder)};
  if (prompt.kind != Kind::kList) {
    invalid_request(fmt::format("body.prompt: must be a text or a list of token ids (got {})", describe(prompt)));
  }
  const bool many = prompt.has_odd_item && (!prompt.strings.empty() || !prompt.lists.empty());
  if (many) return list_of_prompts(prompt, model, encoder);
  return {token_prompt(prompt, "body.prompt", model)};
}

void choose_chat_format(ServedModel& model) {
  if (!model.tokenizer || model.chat || !model.chat_fault.empty()) return;
  try {
    model.chat = std::make_shared<const ChatFormat>(*model.tokenizer, model.chat_format, model.chat_date);
  } catch (const ConfigError& error) {
    model.chat_fault = error.what();
  }
}

ChatPromptTokens chat_prompt(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder) {
  if (!encoder) refuse_text("body.messages", model);
  if (!model.chat) {
    invalid_request(fmt::format("url: {} has no chat format: {}; --chat-format takes {}", model.id, model.chat_fault,
                                ChatFormat::known_names()));
  }
  ChatPrompt chat = model.chat->prompt(read_messages(draft), chat_options(draft));
  ChatPromptTokens prompt{.prompt = {encode_text(chat.text, "body.messages", model, encoder, /*special_tokens=*/false)},
                          .reasoning = chat.reasoning};
  prompt.prompt.text = std::move(chat.text);
  for (const std::string& end : model.chat->end_tokens()) {
    if (const auto token = model.tokenizer->token_id(end)) prompt.end_tokens.push_back(*token);
  }
  return prompt;
}

StopStrings stop_strings(const JsonFields& body, const ServedModel& model) {
  const JsonValue& stop = field(body, "stop");
  std::vector<std::string> texts = stop.kind == Kind::kString ? std::vector{stop.text} : stop.strings;
  const bool is_list = stop.kind == Kind::kList && stop.strings.size() == stop.count && stop.count <= kMaxStops;
  if (stop.kind == Kind::kString && stop.text.empty()) return {};
  if (stop.kind != Kind::kNull && stop.kind != Kind::kString && !is_list) {
    invalid_parameter(
        fmt::format("body.stop: must be a text or a list of at most {} texts (got {})", kMaxStops, describe(stop)));
  }
  for (const std::string& text : texts) {
    if (!text.empty() && text.size() <= kMaxStopBytes) continue;
    invalid_parameter(fmt::format("body.stop: texts must have 1 to {} bytes (got {})", kMaxStopBytes, text.size()));
  }
  if (!texts.empty() && !model.tokenizer) refuse_text("body.stop", model);
  return StopStrings(std::move(texts));
}

}  // namespace computron
