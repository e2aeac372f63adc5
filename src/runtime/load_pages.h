// Where a loader puts the raw pages of a shard: zeros until it writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "computron/device/device.h"
#include "computron/model/shard_layout.h"
#include "src/device/mapped_pages.h"
#include "src/runtime/first_touch.h"

namespace computron {

class LoadPages {
 public:
  virtual ~LoadPages() = default;
  // Makes bytes [begin, end) of a page exist before they are first written. Any thread. Error{kSystem} where memory
  // runs out.
  virtual void touch(PageId page, std::size_t begin, std::size_t end) = 0;
  // Of a page that has been touched.
  virtual std::byte* at(PageId page) const = 0;
};

// Pages that stay where they are: page p at offsets[p] of `buffer`. Borrows both.
class PagesInPlace final : public LoadPages {
 public:
  PagesInPlace(HostBuffer& buffer, const std::vector<std::size_t>& offsets)
      : buffer_(buffer), offsets_(offsets), memory_(buffer) {}

  void touch(PageId page, std::size_t begin, std::size_t end) override {
    memory_.touch(offsets_[page] + begin, offsets_[page] + end);
  }
  std::byte* at(PageId page) const override { return buffer_.data() + offsets_[page]; }

 private:
  HostBuffer& buffer_;
  const std::vector<std::size_t>& offsets_;
  FirstTouch memory_;
};

// Zeros that no device copies from; addresses for all of them, memory for those that are touched.
class StagingArea final : public HostBuffer {
 public:
  // `what` names it in the Error{kSystem}.
  StagingArea(std::size_t bytes, const std::string& what);

  std::byte* data() const override { return pages_.data(); }
  std::size_t bytes() const override { return pages_.bytes(); }
  bool populate(std::size_t begin, std::size_t end) override { return pages_.populate(begin, end); }
  void make_read_only() override { pages_.make_read_only(); }

 private:
  MappedPages pages_;
};

// Pages that are somewhere else once they are complete, in slots: the slot of one that is released is that of the next
// one that is touched, while much of it is in the processor's caches, and the system is asked for no more memory than
// are incomplete at once.
class StagedPages final : public LoadPages {
 public:
  // `what` names them in the Error{kSystem}.
  StagedPages(const ShardLayout& layout, const std::string& what);

  void touch(PageId page, std::size_t begin, std::size_t end) override;
  std::byte* at(PageId page) const override { return area_.data() + slot_bytes_ * slot_of_[page].load(); }
  // A page that nobody will touch or read any more. Any thread.
  void release(PageId page);
  // That have been used at once, at most. When nobody is at work.
  std::size_t slots() const { return slots_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t take_slot(PageId page);

  const std::size_t part_bytes_, slot_bytes_;  // no two slots share a part, which is touched at once
  StagingArea area_;
  FirstTouch memory_;
  std::vector<std::atomic<std::size_t>> slot_of_;  // [page], or kNone
  std::mutex mutex_;
  std::vector<std::size_t> free_;  // guarded by mutex_: the last one that was released is the last
  std::size_t slots_ = 0;          // guarded by mutex_
};

}  // namespace computron
