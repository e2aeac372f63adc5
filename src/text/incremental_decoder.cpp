#include "computron/text/incremental_decoder.h"

#include <algorithm>

#include "computron/base/utf8.h"
#include "src/text/tokenizer_parts.h"

namespace computron {
namespace {

// Of the tokens before, only the last can hold bytes that a character to come begins with; what is before them only
// says that a text has begun.
constexpr std::size_t kTokensBefore = 16;

}  // namespace

struct IncrementalDecoder::State {
  const Tokenizer::Parts& parts;
  TokenDecoder decoder;
  std::string before = {};  // text that is still to come out of the decoder and is not part of what comes

  void take(TokenId token, std::string& text) {
    const std::string* token_text = parts.text_of(token);
    if (token_text != nullptr && !parts.is_special(token)) decoder.take(*token_text, text);
  }

  // Leaves `before` out of what has been appended to `text` at `from`.
  void leave_out(std::string& text, std::size_t from) {
    if (before.empty() || text.size() == from) return;
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(from);
    const std::size_t common =
        static_cast<std::size_t>(std::mismatch(begin, text.end(), before.begin(), before.end()).first - begin);
    if (common == before.size()) text.erase(from, common);
    before.clear();
  }
};

// A run of bytes is one text or none, so all of it is needed.
std::span<const TokenId> decoding_context(const Tokenizer& tokenizer, std::span<const TokenId> before) {
  const auto is_byte = [&](TokenId token) {
    const std::string* text = tokenizer.parts_->text_of(token);
    return text != nullptr && byte_of_token(*text) >= 0;
  };
  std::size_t skipped = before.size() > kTokensBefore ? before.size() - kTokensBefore : 0;
  while (skipped > 0 && is_byte(before[skipped])) --skipped;
  return before.subspan(skipped);
}

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, std::span<const TokenId> before)
    : state_(std::make_unique<State>(State{*tokenizer.parts_, tokenizer.parts_->decoder})) {
  std::string text;
  for (const TokenId token : decoding_context(tokenizer, before)) state_->take(token, text);
  TokenDecoder(state_->decoder).end(state_->before);
}

IncrementalDecoder::~IncrementalDecoder() = default;
IncrementalDecoder::IncrementalDecoder(IncrementalDecoder&&) noexcept = default;

void IncrementalDecoder::push(TokenId token, std::string& text) {
  const std::size_t from = text.size();
  state_->take(token, text);
  state_->leave_out(text, from);
}

void IncrementalDecoder::finish(std::string& text) {
  const std::size_t from = text.size();
  state_->decoder.end(text);
  state_->leave_out(text, from);
}

std::string IncrementalDecoder::held_back() const {
  std::string text;
  if (!state_->decoder.keeps_something()) return text;
  State rest(*state_);
  rest.decoder.end(text);
  rest.leave_out(text, 0);
  return text.find(kReplacementCharacter) == std::string::npos ? text : std::string();
}

}  // namespace computron
