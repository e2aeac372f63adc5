// Conversations as the text that chat models were trained on: by the chat template that came with a tokenizer, or by a
// format that is known here by name.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "computron/text/tokenizer.h"

namespace computron {

struct ChatMessage {
  std::string role;  // system, user, assistant, or developer where the format has one
  std::string content{};
  std::vector<std::string> parts{};        // texts that make the content; empty: `content` is it
  std::optional<std::string> reasoning{};  // an earlier answer's thoughts
};

// How answers show what they are thought of, which is not a part of what they say.
enum class Reasoning : std::uint8_t {
  kNone,
  kThink,      // <think>thoughts</think>answer
  kOpenThink,  // the same, where the prompt has opened <think>
  kHarmony     // gpt-oss: <|channel|>analysis<|message|>thoughts<|end|>...<|channel|>final<|message|>answer
};

struct ChatOptions {
  bool add_generation_prompt = true;    // the beginning of an answer
  bool continue_final_message = false;  // the last message is the beginning of the answer
  std::map<std::string, std::variant<bool, std::int64_t, double, std::string>> arguments{};  // of the template
};

struct ChatPrompt {
  std::string text;  // special tokens as text: to be encoded without further ones
  Reasoning reasoning = Reasoning::kNone;
};

// Immutable: any number of threads may share one.
class ChatFormat {
 public:
  using Date = std::chrono::year_month_day;

  // The format called `name`; without a name that of the tokenizer's chat template, or, where it came without one, the
  // known format that has its special tokens. Templates that ask for the date are told `date`, or else always the same
  // day, so that a job that is run again asks the same. Borrows nothing. ConfigError saying why there is none: no such
  // name, or the template's line and the first thing in it that is not known.
  explicit ChatFormat(const Tokenizer& tokenizer, std::string_view name = "", std::optional<Date> date = {});
  ~ChatFormat();
  ChatFormat(ChatFormat&&) noexcept;

  // "llama3.1", ...; "template" if it is a tokenizer's own.
  const std::string& name() const;
  // "llama3.1, llama3, ...".
  static std::string known_names();
  static bool is_known(std::string_view name);

  // RequestError{invalid_request} naming the message ("body.messages[0]") whose role is not known, or that the template
  // refuses. `messages` is not empty.
  ChatPrompt prompt(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  // The texts of the tokens that end an answer.
  const std::vector<std::string>& end_tokens() const;

 private:
  struct Rules;
  std::unique_ptr<const Rules> rules_;
};

// Carried by a checkpoint beside its tokenizer's files: the name of the format that it is to be served with.
inline constexpr const char* kChatFormatFile = "chat_format";

// "2024-07-26"; nothing if it is no date.
std::optional<ChatFormat::Date> parse_date(std::string_view text);

}  // namespace computron
