#include "src/runtime/load_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/types.h"

namespace computron {
namespace {

constexpr std::size_t kSystemPage = 4096;

MappedPages staging_pages(std::size_t bytes, const std::string& what) {
  std::optional<MappedPages> pages = MappedPages::reserve(bytes);
  if (!pages)
    throw Error(ExitCode::kSystem, fmt::format("no addresses for the raw pages of {}: try --coded off", what));
  return std::move(*pages);
}

std::size_t largest_page(const ShardLayout& layout) {
  std::size_t largest = 1;
  for (const std::size_t used : layout.used_bytes) largest = std::max(largest, used);
  return round_up(largest, kSystemPage);
}

}  // namespace

StagingArea::StagingArea(std::size_t bytes, const std::string& what) : pages_(staging_pages(bytes, what)) {}

StagedPages::StagedPages(const ShardLayout& layout, const std::string& what)
    : part_bytes_(std::min(largest_page(layout), FirstTouch::kPartBytes)),
      slot_bytes_(round_up(largest_page(layout), part_bytes_)),
      area_(slot_bytes_ * layout.used_bytes.size(), what),
      memory_(area_, part_bytes_),
      slot_of_(layout.used_bytes.size()) {
  for (auto& slot : slot_of_) slot = kNone;
}

std::size_t StagedPages::take_slot(PageId page) {
  const std::lock_guard lock(mutex_);
  if (slot_of_[page] != kNone) return slot_of_[page];  // another thread was quicker
  std::size_t slot = slots_;
  if (free_.empty()) {
    ++slots_;
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  slot_of_[page] = slot;
  return slot;
}

void StagedPages::touch(PageId page, std::size_t begin, std::size_t end) {
  std::size_t slot = slot_of_[page];
  if (slot == kNone) slot = take_slot(page);
  memory_.touch(slot * slot_bytes_ + begin, slot * slot_bytes_ + end);
}

void StagedPages::release(PageId page) {
  const std::size_t slot = slot_of_[page].exchange(kNone);
  if (slot == kNone) return;  // padding only, never touched
  memory_.clear(slot * slot_bytes_, (slot + 1) * slot_bytes_);
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

}  // namespace computron
