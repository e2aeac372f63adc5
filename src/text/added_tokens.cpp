#include "src/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "computron/base/utf8.h"
#include "src/text/unicode.h"

namespace computron {
namespace {

// Where the last character before `end` begins.
std::size_t previous_character(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  std::size_t at = previous_character(text, text.size());
  return is_word_character(next_character(text, at));
}

bool starts_with_word(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_word_character(next_character(text, at));
}

std::size_t without_space_behind(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = previous_character(text, end);
    std::size_t at = begin;
    if (!is_white_space(next_character(text, at))) break;
    end = begin;
  }
  return end;
}

std::size_t space_before(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size(); end = at) {
    if (!is_white_space(next_character(text, at))) break;
  }
  return end;
}

bool stands_alone(std::string_view text, const TextRange& range) {
  return !ends_with_word(text.substr(0, range.begin)) && !starts_with_word(text.substr(range.end));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_partition(tokens_.begin(), tokens_.end(), [](const AddedToken& token) { return token.special; });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    (tokens_[i].normalized ? normalized_ : original_).add(tokens_[i].text, i);
  }
}

// A token's space may reach into what the one before has taken already, or over the next one: both as the tokenizers'
// own library does it.
std::vector<TextPart> AddedTokens::split(std::string_view text, const TextFinder& finder) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;
  std::size_t from = 0;
  TextRange space;  // behind the last token that took it along
  while (const auto found = finder.find(text, from)) {
    from = found->range.end;
    TextRange range = found->range;
    const AddedToken& token = tokens_[found->index];
    if (token.single_word && !stands_alone(text, range)) continue;
    if (token.lstrip) {
      range.begin = std::max(range.begin, done);
      range.begin = done + without_space_behind(text.substr(done, range.begin - done));
    }
    if (token.rstrip) {
      const bool known = space.begin <= range.end && range.end < space.end;
      if (!known) space = {range.end, range.end + space_before(text.substr(range.end))};
      range.end = space.end;
    }
    if (done < range.begin) parts.push_back({{done, range.begin}});
    parts.push_back({range, true, token.id});
    done = range.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}});
  return parts;
}

}  // namespace computron
