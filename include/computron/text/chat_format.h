// Conversations as the text that chat models were trained on: built-in formats, recognised from the tokenizer.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/text/tokenizer.h"

namespace computron {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

// What Mistral's templates put around questions and answers, which is not the same in any two of them.
struct MistralPieces {
  std::string before_question, behind_question, before_answer;
  bool trims_answer = false;
  std::string behind_answer;                     // and its end token
  enum { kNone, kFirst, kLast } system = kNone;  // the question that takes the system's words
};

class ChatFormat {
 public:
  enum Kind { kLlama3, kLlama31, kQwen2, kQwen25, kMistral };

  // By the special tokens that the tokenizer has and by its chat template, if it came with one: that must be of the
  // same family. Nothing for a format that is not known.
  static std::optional<ChatFormat> recognise(const Tokenizer& tokenizer);

  Kind kind() const { return kind_; }
  // What recognise() looks for, for messages.
  static std::string_view known_formats();

  // The conversation and the beginning of an answer, special tokens as text: to be encoded without further ones.
  // RequestError{invalid_request} naming the message ("body.messages[0]") whose role is not known or not its turn.
  std::string prompt(std::span<const ChatMessage> messages) const;
  // The text of the token that ends an answer.
  const std::string& end_token() const { return end_; }

 private:
  ChatFormat(Kind kind, std::string begin, std::string end)
      : kind_(kind), begin_(std::move(begin)), end_(std::move(end)) {}
  static std::optional<ChatFormat> recognise_qwen(const Tokenizer& tokenizer);

  Kind kind_;
  std::string begin_, end_;  // special tokens
  MistralPieces mistral_;
};

}  // namespace computron
