#include "src/serve/link_savings.h"

#include <algorithm>
#include <functional>

namespace computron {

void LinkSavings::note(ShardLayout* layout, std::span<const std::uint32_t> savings) {
  const std::size_t pages = layout->used_bytes.size();
  const auto [known, is_new] = least_.try_emplace(layout, pages, 0);
  std::vector<std::uint32_t>& least = known->second;
  if (savings.empty()) {
    least.assign(pages, 0);
  } else if (is_new) {
    std::ranges::copy(savings.first(pages), least.begin());
  } else {
    const auto smaller = [](std::uint32_t a, std::uint32_t b) { return std::min(a, b); };
    std::ranges::transform(least, savings.first(pages), least.begin(), smaller);
  }
}

void LinkSavings::set_link_bytes() const {
  for (const auto& [layout, savings] : least_) {
    if (std::ranges::all_of(savings, [](std::uint32_t saved) { return saved == 0; })) continue;
    layout->link_bytes = layout->used_bytes;
    std::ranges::transform(layout->link_bytes, savings, layout->link_bytes.begin(), std::minus<std::size_t>());
  }
}

}  // namespace computron
