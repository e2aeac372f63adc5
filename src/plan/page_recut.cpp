#include "computron/plan/page_recut.h"

#include <algorithm>
#include <utility>

#include "computron/base/bytes.h"
#include "computron/base/digest.h"

namespace computron {
namespace {

// [page] Where its bytes begin, all pages one behind the other, and where the last ends.
std::vector<std::size_t> beginnings(const ShardLayout& layout) {
  std::vector<std::size_t> begins = {0};
  for (const std::size_t bytes : layout.used_bytes) begins.push_back(begins.back() + bytes);
  return begins;
}

void cut_pages(std::size_t bytes, ShardLayout& cut) {
  cut.used_bytes.clear();
  for (std::size_t at = 0; at < bytes; at += cut.page_bytes) {
    cut.used_bytes.push_back(std::min(cut.page_bytes, bytes - at));
  }
}

// The link bytes of what lies before byte `at` of all pages, those of a page spread evenly over its bytes.
class LinkBytesBefore {
 public:
  LinkBytesBefore(const ShardLayout& layout, const std::vector<std::size_t>& begins)
      : layout_(layout), begins_(begins) {}

  // Not less than at the call before.
  std::size_t operator()(std::size_t at) {
    for (; page_ < layout_.used_bytes.size() && begins_[page_ + 1] <= at; ++page_) whole_ += layout_.link_bytes[page_];
    if (page_ == layout_.used_bytes.size()) return whole_;
    return whole_ + (at - begins_[page_]) * layout_.link_bytes[page_] / layout_.used_bytes[page_];
  }

 private:
  const ShardLayout& layout_;
  const std::vector<std::size_t>& begins_;
  std::size_t page_ = 0, whole_ = 0;
};

void cut_link_bytes(const ShardLayout& layout, const std::vector<std::size_t>& begins, ShardLayout& cut) {
  cut.link_bytes.clear();
  if (layout.link_bytes.empty()) return;
  LinkBytesBefore link_bytes_before(layout, begins);
  std::size_t at = 0, before = 0;
  for (const std::size_t used : cut.used_bytes) {
    const std::size_t through = link_bytes_before(at += used);
    cut.link_bytes.push_back(through - before);
    before = through;
  }
}

// A page holds what the old ones hold that it overlaps, as far as it does.
void cut_contents(const ShardLayout& layout, const std::vector<std::size_t>& begins, ShardLayout& cut) {
  cut.contents.clear();
  if (layout.contents.empty()) return;
  std::size_t at = 0, old = 0;
  for (const std::size_t used : cut.used_bytes) {
    ByteWriter page;
    for (; old + 1 < layout.used_bytes.size() && begins[old + 1] <= at; ++old) {
    }
    for (std::size_t i = old; i < layout.used_bytes.size() && begins[i] < at + used; ++i) {
      page.put(layout.contents[i]);
      page.put(static_cast<std::int64_t>(begins[i]) - static_cast<std::int64_t>(at));
    }
    cut.contents.push_back(digest128(page.bytes()));
    at += used;
  }
}

}  // namespace

ShardLayout recut(const ShardLayout& layout, std::size_t page_bytes) {
  ShardLayout cut = layout;
  cut.page_bytes = page_bytes;
  cut.uses.clear();
  cut.over_before.clear();
  const std::vector<std::size_t> begins = beginnings(layout);
  cut_pages(begins.back(), cut);
  cut_link_bytes(layout, begins, cut);
  cut_contents(layout, begins, cut);
  std::vector<std::int64_t> over;  // [old use] the last new use that is over with it
  for (std::size_t use = 0; use < layout.uses.size(); ++use) {
    const PageId old_page = layout.uses[use];
    const std::int64_t before =
        layout.over_before[use] < 0 ? -1 : over[static_cast<std::size_t>(layout.over_before[use])];
    const auto last = static_cast<PageId>((std::max(begins[old_page + 1], begins[old_page] + 1) - 1) / page_bytes);
    for (auto page = static_cast<PageId>(begins[old_page] / page_bytes); page <= last; ++page) {
      if (!cut.uses.empty() && cut.uses.back() == page) continue;  // in use already
      const auto number = static_cast<std::int64_t>(cut.uses.size());
      cut.uses.push_back(page);
      // An operation binds so many pages, whatever their size.
      cut.over_before.push_back(std::max<std::int64_t>({before, number - ShardLayout::kGroupPages, -1}));
    }
    // A page that the next old use goes on with is not over.
    const bool goes_on = use + 1 < layout.uses.size() && begins[layout.uses[use + 1]] / page_bytes == cut.uses.back();
    over.push_back(static_cast<std::int64_t>(cut.uses.size()) - (goes_on ? 2 : 1));
  }
  return cut;
}

}  // namespace computron
