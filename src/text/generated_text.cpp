#include "computron/text/generated_text.h"

#include <algorithm>
#include <utility>

namespace computron {

StopStrings::StopStrings(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (const std::string& text : texts_) longest_ = std::max(longest_, text.size());
}

std::size_t StopStrings::find(std::string_view text, std::size_t from) const {
  std::size_t first = std::string_view::npos;
  for (const std::string& stop : texts_) first = std::min(first, text.find(stop, from));
  return first;
}

GeneratedText::GeneratedText(const Tokenizer& tokenizer, std::span<const TokenId> prompt, StopStrings stops,
                             std::uint32_t min_tokens)
    : decoder_(tokenizer, prompt), stops_(std::move(stops)), unchecked_tokens_(min_tokens) {}

bool GeneratedText::push(TokenId token) {
  if (stopped_) return true;
  const std::size_t old_size = text_.size();
  decoder_.push(token, text_);
  if (unchecked_tokens_ == 0) return stop_behind(old_size);
  --unchecked_tokens_;
  look_from_ = text_.size();
  return false;
}

void GeneratedText::finish() {
  if (stopped_) return;
  const std::size_t old_size = text_.size();
  decoder_.finish(text_);
  stop_behind(old_size);
}

// A stop string that was not there before ends in what is new.
bool GeneratedText::stop_behind(std::size_t old_size) {
  if (stops_.empty() || text_.size() == old_size) return false;
  const std::size_t reach = stops_.longest() - 1;
  const std::size_t found = stops_.find(text_, std::max(look_from_, old_size > reach ? old_size - reach : 0));
  if (found == std::string::npos) return false;
  text_.resize(found);
  return stopped_ = true;
}

}  // namespace computron
