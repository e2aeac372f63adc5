// Tokens of completions as text: what a choice says, and its tokens' names and places for logprobs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/requests/request_reader.h"
#include "computron/sched/request.h"

namespace computron {

// Ends a sequence at a stop string.
std::shared_ptr<TokenWatch> make_stop_watch(const TextOutput& output, std::size_t part);

struct ChoiceText {
  std::string text;                  // with echo the prompt's first: as given, or as its tokens are decoded (`offsets`)
  bool stopped = false;              // by a stop string
  std::vector<std::size_t> offsets;  // of the prompt's tokens, if they come back, and the generated ones: where in
                                     // `text` what the token adds begins, in characters
};
// Of a completion that is part `part` of its line. With neither tokenizer nor text: empty, offsets 0. `offsets`: they
// are asked for, and must fit the text.
ChoiceText choice_text(const Completion& completion, const TextOutput& output, std::size_t part, bool offsets);

// What a chat's answer says, and the thoughts before it; nothing where it came to none.
struct ChatAnswer {
  std::optional<std::string> content, reasoning;
};
ChatAnswer chat_answer(const Completion& completion, const TextOutput& output, const ChoiceText& choice);

// A token as logprobs have it: what it adds to a text; "bytes:\xe2\x80" if that is not whole characters; "token:7"
// without a tokenizer.
std::string token_name(TokenId token, const TextOutput& output);

}  // namespace computron
