#include "computron/plan/page_recut.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "computron/base/bytes.h"
#include "computron/base/digest.h"

namespace computron {
namespace {

// An adapter's pages behind all others, which are then cut as they are without it.
ShardLayout base_first(const ShardLayout& layout) {
  ShardLayout ordered = layout;
  std::vector<PageId> old_pages;  // [new number]
  for (PageId page = 0; page < layout.used_bytes.size(); ++page) {
    if (!std::ranges::binary_search(layout.adapter_pages, page)) old_pages.push_back(page);
  }
  const auto base_pages = static_cast<PageId>(old_pages.size());
  old_pages.insert(old_pages.end(), layout.adapter_pages.begin(), layout.adapter_pages.end());
  std::vector<PageId> new_pages(old_pages.size());  // [old number]
  for (PageId page = 0; page < old_pages.size(); ++page) {
    const PageId old = old_pages[page];
    new_pages[old] = page;
    ordered.used_bytes[page] = layout.used_bytes[old];
    if (!layout.link_bytes.empty()) ordered.link_bytes[page] = layout.link_bytes[old];
    if (!layout.contents.empty()) ordered.contents[page] = layout.contents[old];
  }
  for (PageId& page : ordered.uses) page = new_pages[page];
  std::iota(ordered.adapter_pages.begin(), ordered.adapter_pages.end(), base_pages);
  return ordered;
}

// Where the bytes of a page lie. New page i has those in [i × page_bytes, (i + 1) × page_bytes).
struct Extent {
  std::size_t begin = 0, end = 0;
  std::size_t first_page(std::size_t page_bytes) const { return begin / page_bytes; }
  std::size_t last_page(std::size_t page_bytes) const { return (std::max(end, begin + 1) - 1) / page_bytes; }
};

// [page] One behind the other, an adapter's from a new page on.
std::vector<Extent> extents_of(const ShardLayout& layout, std::size_t page_bytes) {
  std::vector<Extent> extents;
  std::size_t at = 0;
  for (PageId page = 0; page < layout.used_bytes.size(); ++page) {
    if (!layout.adapter_pages.empty() && page == layout.adapter_pages.front()) at = round_up(at, page_bytes);
    extents.push_back({at, at + layout.used_bytes[page]});
    at = extents.back().end;
  }
  return extents;
}

void cut_pages(const ShardLayout& layout, const std::vector<Extent>& extents, ShardLayout& cut) {
  cut.used_bytes.assign(ceil_div(extents.back().end, cut.page_bytes), 0);
  for (const Extent& old : extents) {
    for (std::size_t page = old.first_page(cut.page_bytes); page * cut.page_bytes < old.end; ++page) {
      cut.used_bytes[page] = std::min(cut.page_bytes, old.end - page * cut.page_bytes);
    }
  }
  if (layout.adapter_pages.empty()) return;
  const std::size_t first = extents[layout.adapter_pages.front()].first_page(cut.page_bytes);
  cut.adapter_pages.resize(cut.used_bytes.size() - first);
  std::iota(cut.adapter_pages.begin(), cut.adapter_pages.end(), static_cast<PageId>(first));
}

// The link bytes of what lies before byte `at` of all pages, those of a page spread evenly over its bytes.
class LinkBytesBefore {
 public:
  LinkBytesBefore(const ShardLayout& layout, const std::vector<Extent>& extents) : layout_(layout), extents_(extents) {}

  // Not less than at the call before.
  std::size_t operator()(std::size_t at) {
    for (; page_ < extents_.size() && extents_[page_].end <= at; ++page_) whole_ += layout_.link_bytes[page_];
    if (page_ == extents_.size() || extents_[page_].begin >= at) return whole_;
    return whole_ + (at - extents_[page_].begin) * layout_.link_bytes[page_] / layout_.used_bytes[page_];
  }

 private:
  const ShardLayout& layout_;
  const std::vector<Extent>& extents_;
  std::size_t page_ = 0, whole_ = 0;
};

void cut_link_bytes(const ShardLayout& layout, const std::vector<Extent>& extents, ShardLayout& cut) {
  cut.link_bytes.clear();
  if (layout.link_bytes.empty()) return;
  LinkBytesBefore link_bytes_before(layout, extents);
  std::size_t before = 0;
  for (std::size_t page = 0; page < cut.used_bytes.size(); ++page) {
    const std::size_t through = link_bytes_before(page * cut.page_bytes + cut.used_bytes[page]);
    cut.link_bytes.push_back(through - before);
    before = through;
  }
}

// A page holds what the old ones hold that it overlaps, as far as it does.
void cut_contents(const ShardLayout& layout, const std::vector<Extent>& extents, ShardLayout& cut) {
  cut.contents.clear();
  if (layout.contents.empty()) return;
  std::size_t old = 0;
  for (std::size_t number = 0; number < cut.used_bytes.size(); ++number) {
    const std::size_t begin = number * cut.page_bytes, end = begin + cut.used_bytes[number];
    ByteWriter page;
    for (; old + 1 < extents.size() && extents[old].end <= begin; ++old) {
    }
    for (std::size_t i = old; i < extents.size() && extents[i].begin < end; ++i) {
      page.put(layout.contents[i]);
      page.put(static_cast<std::int64_t>(extents[i].begin) - static_cast<std::int64_t>(begin));
    }
    cut.contents.push_back(digest128(page.bytes()));
  }
}

}  // namespace

ShardLayout recut(const ShardLayout& given, std::size_t page_bytes) {
  const ShardLayout layout = base_first(given);
  ShardLayout cut = layout;
  cut.page_bytes = page_bytes;
  cut.slot_bytes = 0;
  cut.uses.clear();
  cut.over_before.clear();
  const std::vector<Extent> extents = extents_of(layout, page_bytes);
  cut_pages(layout, extents, cut);
  cut_link_bytes(layout, extents, cut);
  cut_contents(layout, extents, cut);
  std::vector<std::int64_t> over;  // [old use] the last new use that is over with it
  for (std::size_t use = 0; use < layout.uses.size(); ++use) {
    const Extent& old = extents[layout.uses[use]];
    const std::int64_t before =
        layout.over_before[use] < 0 ? -1 : over[static_cast<std::size_t>(layout.over_before[use])];
    for (std::size_t page = old.first_page(page_bytes); page <= old.last_page(page_bytes); ++page) {
      if (!cut.uses.empty() && cut.uses.back() == page) continue;  // in use already
      const auto number = static_cast<std::int64_t>(cut.uses.size());
      cut.uses.push_back(static_cast<PageId>(page));
      // An operation binds so many pages, whatever their size.
      cut.over_before.push_back(std::max<std::int64_t>({before, number - ShardLayout::kGroupPages, -1}));
    }
    // A page that the next old use goes on with is not over.
    const bool goes_on =
        use + 1 < layout.uses.size() && extents[layout.uses[use + 1]].first_page(page_bytes) == cut.uses.back();
    over.push_back(static_cast<std::int64_t>(cut.uses.size()) - (goes_on ? 2 : 1));
  }
  return cut;
}

}  // namespace computron
