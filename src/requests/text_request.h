// What requests for completions give as text: prompts, conversations, stop strings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/requests/request_reader.h"
#include "src/requests/request_fields.h"

namespace computron {

// A prompt as tokens, and as the text that it was given as.
struct Prompt {
  std::vector<TokenId> tokens;
  std::optional<std::string> text = {};
};

// Tokens of a text of the model, all of them in its vocabulary. RequestError naming `path`; refuse_text() without an
// encoder.
std::vector<TokenId> encode_text(std::string_view text, std::string_view path, const ServedModel& model,
                                 std::optional<Encoder>& encoder, bool special_tokens = true);
void check_vocabulary(const std::vector<TokenId>& tokens, std::string_view path, const ServedModel& model);

// Of body.prompt: a text, a list of texts, a list of token ids or a list of such lists. Errors as check_request().
std::vector<Prompt> prompts_of(const JsonFields& body, const ServedModel& model, std::optional<Encoder>& encoder);

// Gives the model the chat format that it is to have, or says why it has none; nothing without a tokenizer.
void choose_chat_format(ServedModel& model);

// A conversation, and what is to be known of its answer.
struct ChatPromptTokens {
  Prompt prompt;
  Reasoning reasoning = Reasoning::kNone;
  std::vector<TokenId> end_tokens = {};
};

// Of body.messages and what the body says of the model's format.
ChatPromptTokens chat_prompt(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder);

// Of body.stop: a text or a list of texts.
StopStrings stop_strings(const JsonFields& body, const ServedModel& model);

}  // namespace computron
