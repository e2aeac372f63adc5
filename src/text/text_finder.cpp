#include "src/text/text_finder.h"

#include <algorithm>

#include "src/text/work_limit.h"

namespace computron {

const std::size_t* TextFinder::child(const Node& node, char byte) {
  const auto place = std::lower_bound(node.next.begin(), node.next.end(), byte,
                                      [](const auto& item, char value) { return item.first < value; });
  return place != node.next.end() && place->first == byte ? &place->second : nullptr;
}

void TextFinder::add(std::string_view text, std::size_t index) {
  if (text.empty()) return;
  begins_[static_cast<unsigned char>(text.front())] = true;
  std::size_t node = 0;
  for (const char byte : text) {
    if (const std::size_t* found = child(nodes_[node], byte)) {
      node = *found;
      continue;
    }
    auto& next = nodes_[node].next;
    next.insert(std::lower_bound(next.begin(), next.end(), std::pair(byte, std::size_t{0})), {byte, nodes_.size()});
    node = nodes_.size();
    nodes_.emplace_back();
  }
  if (nodes_[node].index == kNone) nodes_[node].index = index;
}

std::optional<TextFinder::Found> TextFinder::longest_at(std::string_view text, std::size_t begin) const {
  std::optional<Found> longest;
  each_at(text, begin, [&](std::size_t end, std::size_t index) { longest = Found{{begin, end}, index}; });
  return longest;
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    WorkLimit::check();
    if (const auto found = longest_at(text, begin)) return found;
  }
  return std::nullopt;
}

}  // namespace computron
