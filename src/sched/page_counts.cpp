#include "computron/sched/page_counts.h"

#include <algorithm>
#include <utility>

namespace computron {

PageCounts::PageCounts(const std::vector<const ShardLayout*>& layouts, const std::vector<bool>& pinned)
    : layouts_(layouts),
      shared_(layouts),
      pinned_(pinned),
      resident_models_(layouts.size()),
      resident_(layouts.size()),
      missing_bytes_(layouts.size(), 0),
      staying_(layouts.size(), 0),
      numbers_(layouts.size()) {
  pinned_.resize(layouts.size(), false);
  for (int set = 0; set < shared_.sets(); ++set) {
    sets_.push_back({.pinned = std::ranges::any_of(shared_.models_of(set), [&](ModelId m) { return pinned_[m]; })});
  }
  visited_.resize(sets_.size(), 0);
  for (ModelId model = 0; model < layouts.size(); ++model) count_model(model);
}

void PageCounts::count_model(ModelId model) {
  const ShardLayout& layout = *layouts_[model];
  if (shared_.sets_of(model).empty() && layout.pages(FrameKind::kSlot) == 0) {
    missing_bytes_[model] = layout.total_link_bytes();
    pinned_pages_.whole += pinned_[model] ? layout.pages() : 0;
    return;
  }
  std::vector<int> numbers;
  int next = 0;
  for (PageId page = 0; page < static_cast<PageId>(layout.pages()); ++page) {
    const PageRef ref{model, page};
    const bool first = shared_.first(ref) == ref, stays = !pinned_[model] && is_pinned(ref);
    missing_bytes_[model] += link_bytes(ref);
    if (const int set = shared_.set_of(ref); first && set != SharedPages::kAlone) {
      sets_[set].missing_bytes += link_bytes(ref);
    }
    const FrameKind kind = layout.kind_of(page);
    pinned_pages_.of(kind) += first && is_pinned(ref) ? 1 : 0;
    const bool rotates = !stays && kind == FrameKind::kWhole;
    numbers.push_back(rotates ? next++ : -1);
    staying_[model] += stays && kind == FrameKind::kWhole ? 1 : 0;
  }
  if (next < layout.pages()) numbers_[model] = std::move(numbers);
}

void PageCounts::count(PageRef page, int change) {
  ++version_;
  const std::size_t bytes = link_bytes(page);
  const auto count_missing = [&](std::size_t& missing) { change > 0 ? missing -= bytes : missing += bytes; };
  const FrameKind kind = layouts_[page.model]->kind_of(page.page);
  unpinned_pages_.of(kind) += is_pinned(page) ? 0 : change;
  if (const int set = shared_.set_of(page); set != SharedPages::kAlone) {
    sets_[set].resident += change;
    count_missing(sets_[set].missing_bytes);
  }
  shared_.for_each(page, [&](const PageRef& alias) {
    ByKind& resident = resident_[alias.model];
    resident.of(kind) += change;
    count_missing(missing_bytes_[alias.model]);
    resident_models_.set(alias.model, resident.whole + resident.slot > 0);
  });
}

int PageCounts::pages_alone(ModelId model, FrameKind kind) const {
  int pages = resident_[model].of(kind);
  for (const int set : shared_.sets_of(model)) pages -= shared_.kind_of(set) == kind ? sets_[set].resident : 0;
  return pages;
}

int PageCounts::unpinned_pages(std::span<const ModelId> models, FrameKind kind) const {
  int pages = 0;
  for (const ModelId model : models) pages += pinned_[model] ? 0 : pages_alone(model, kind);
  visit_sets(models, [&](int set) {
    const bool counts = shared_.kind_of(set) == kind && !sets_[set].pinned;
    pages += counts ? sets_[set].resident : 0;
  });
  return pages;
}

std::size_t PageCounts::missing_bytes(std::span<const ModelId> models) const {
  std::size_t bytes = 0;
  for (const ModelId model : models) {
    bytes += missing_bytes_[model];
    for (const int set : shared_.sets_of(model)) bytes -= sets_[set].missing_bytes;
  }
  visit_sets(models, [&](int set) { bytes += sets_[set].missing_bytes; });
  return bytes;
}

bool PageCounts::is_pinned(PageRef page) const {
  const int set = shared_.set_of(page);
  return set == SharedPages::kAlone ? pinned_[page.model] : sets_[set].pinned;
}

// Estimates of equal pages may differ: the first one's counts.
std::size_t PageCounts::link_bytes(PageRef page) const {
  const PageRef first = shared_.first(page);
  return layouts_[first.model]->page_link_bytes(first.page);
}

int UnpinnedPrefix::pages(const PageCounts& counts, std::span<const ModelId> first, FrameKind kind) {
  if (models_ > first.size() || models_ == 0 || counts_ != &counts || version_ != counts.version()) {
    counts_ = &counts;
    models_ = 0;
    version_ = counts.version();
    whole_ = slots_ = 0;
    visited_.resize(counts.sets_.size(), 0);
    ++visit_;
  }
  for (; models_ < first.size(); ++models_) {
    const ModelId model = first[models_];
    if (!counts.pinned_[model]) {
      whole_ += counts.pages_alone(model, FrameKind::kWhole);
      slots_ += counts.pages_alone(model, FrameKind::kSlot);
    }
    for (const int set : counts.shared_.sets_of(model)) {
      if (std::exchange(visited_[set], visit_) == visit_ || counts.sets_[set].pinned) continue;
      (counts.shared_.kind_of(set) == FrameKind::kWhole ? whole_ : slots_) += counts.sets_[set].resident;
    }
  }
  return kind == FrameKind::kWhole ? whole_ : slots_;
}

}  // namespace computron
