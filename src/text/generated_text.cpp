#include "computron/text/generated_text.h"

#include <algorithm>
#include <utility>

#include "computron/base/utf8.h"

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
  if (unchecked_tokens_ == 0 && stop_behind(old_size)) return true;
  characters_ += count_characters(std::string_view(text_).substr(old_size));
  return stop_in_held_back();
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

// What is held back counts as soon as it is whole: no further token is needed to see that it ends the text.
bool GeneratedText::stop_in_held_back() {
  const std::string held = decoder_.held_back();
  held_characters_ = count_characters(held);
  const std::size_t size = text_.size();
  if (unchecked_tokens_ > 0) {
    --unchecked_tokens_;
    look_from_ = size + held.size();
    return false;
  }
  if (stops_.empty() || held.empty()) return false;
  text_ += held;
  if (stop_behind(size)) return true;
  text_.resize(size);
  return false;
}

}  // namespace computron
