// The pages of a rank's shard of every model, in host memory. Written once by the loader, read-only afterwards. Models
// may have the same pages, and so may other ranks of the node (page_store.h). Pages that gain by it may be kept coded
// (computron/kernels/coded_layout.h): they take less, here and on the host link, and are decoded on their way to the
// device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/checkpoint/reader.h"
#include "computron/device/device.h"
#include "computron/model/shard_layout.h"
#include "computron/runtime/page_store.h"

namespace computron {

// Where a load spends its time: seconds, summed over its threads.
struct LoadTimes {
  double read_s = 0, verify_s = 0;  // of the checkpoint's bytes
  double memory_s = 0;              // until the pages' memory exists
  double widen_s = 0, pack_s = 0;
  double digest_s = 0;               // of the pages
  double encode_s = 0, check_s = 0;  // of pages that are kept coded: decoded once, and digested
  LoadTimes& operator+=(const LoadTimes& other);
};

// How pages are kept.
enum class PageCoding : std::uint8_t { kRaw, kCoded };  // kCoded: of each page the smaller of both

// Where a page lies in its shard's memory, and how. Plain bytes: other ranks find the like in memory that they share.
struct StoredPage {
  std::uint64_t digest = 0;  // page_digest() of its bytes, decoded
  std::uint64_t offset = 0;
  std::uint64_t link_bytes = 0;  // that it takes
  std::uint64_t coded = 0;       // 1: it is
};

class HostStore {
 public:
  // kCoded: Error{kUsage} unless the device decodes pages.
  explicit HostStore(Device& device, PageCoding coding = PageCoding::kRaw);

  // Adds a model whose pages `fill(pages, offsets)` writes: page p at pages + offsets[p], into zeroed memory, which
  // `threads` threads then digest and which becomes read-only. Models are numbered in the order of adding; `name` is
  // the model's name in errors and traces. Error{kSystem} naming the model where memory runs out.
  using Fill = std::function<void(std::byte* pages, const std::vector<std::size_t>& offsets)>;
  ModelId add(const ShardLayout& layout, const std::string& name, const Fill& fill, int threads = 1);

  // Adds a model from a checkpoint: reads rank t's slices, verifies their digests and packs them into pages, with
  // `threads` threads. Beside the pages it holds 1.5 MiB a thread; of pages to be coded staging_bytes(). `times` (may
  // be null) is set to the time that it took. `poll` is called now and then on this thread. CheckpointError, or
  // Error{kSystem}.
  ModelId load(const CheckpointIndex& index, const std::string& name, const ShardLayout& layout, int t,
               const WeightFormat& format, int threads, LoadTimes* times = nullptr,
               const std::function<void()>& poll = {});

  // The same for the next shard of `store`, from its first on. One that is like an earlier one has that one's pages;
  // the pages of one that another rank holds are there after map_held_by_others() only.
  ModelId load_next(const PageStore& store, int threads, LoadTimes* times = nullptr,
                    const std::function<void()>& poll = {});
  // Maps what other ranks hold. All ranks of the node must have come through all their loads, and know it: a vote lies
  // between. Error{kSystem}.
  void map_held_by_others(const PageStore& store);

  HostPage page(ModelId model, PageId page) const {
    const auto [pages, number] = place(model, page);
    const StoredPage& stored = pages.stored[number];
    return {.data = pages.buffer->data() + stored.offset,
            .bytes = page_used_bytes(model, page),
            .link_bytes = stored.link_bytes,
            .coded = stored.coded != 0};
  }
  std::size_t page_used_bytes(ModelId model, PageId page) const { return models_[model].layout->used_bytes[page]; }
  // What the page takes in this rank's host memory and over its link: used bytes, or what they take coded.
  std::size_t page_link_bytes(ModelId model, PageId page) const {
    const auto [pages, number] = place(model, page);
    return pages.stored[number].link_bytes;
  }
  // page_digest() of the page's used bytes, taken when they were written: its copies must have it (CopyStream::fetch).
  std::uint64_t page_digest(ModelId model, PageId page) const {
    const auto [pages, number] = place(model, page);
    return pages.stored[number].digest;
  }
  PageName page_name(ModelId model, PageId page) const { return {models_[model].name, page}; }
  std::string_view name(ModelId model) const { return models_[model].name; }
  int models() const { return static_cast<int>(models_.size()); }
  int pages(ModelId model) const { return models_[model].layout->pages(); }
  // The memory that holds the model's pages, but for those that lie among another's.
  std::span<const std::byte> memory(ModelId model) const {
    return {models_[model].pages->buffer->data(), models_[model].pages->buffer->bytes()};
  }
  PageCoding coding() const { return coding_; }

  // Host bytes that a layout's pages take raw, coded at most.
  static std::size_t bytes_of(const ShardLayout& layout);
  // The same in memory that ranks share: behind a table of what lies where.
  static std::size_t shared_bytes_of(const ShardLayout& layout);
  // What a load to coded pages takes beside what they do, with `threads` threads: a tensor's pages that are complete
  // with its last byte only, and two pages a thread, raw and coded.
  static std::size_t staging_bytes(const ShardLayout& layout, int threads);

 private:
  struct Pages {
    std::unique_ptr<HostBuffer> buffer;
    std::vector<StoredPage> stored;  // [page]
  };
  struct Model {
    std::string name;
    const ShardLayout* layout;  // of all pages
    std::shared_ptr<Pages> pages;
    std::vector<PageStore::Place> places;  // [page] where it lies, by shard; empty: all in `pages`
  };
  struct Place {
    const Pages& pages;
    PageId page;
  };
  Place place(ModelId model, PageId page) const {
    const Model& of = models_[model];
    if (of.places.empty()) return {*of.pages, page};
    const PageStore::Place& there = of.places[page];
    return {*of_shard_[static_cast<std::size_t>(there.shard)], there.page};
  }
  LoadTimes fill(const ShardSource& source, std::size_t begin, Pages& pages, int threads,
                 const std::function<void()>& poll) const;
  LoadTimes fill_raw(const ShardSource& source, std::size_t begin, Pages& pages, int threads,
                     const std::function<void()>& poll) const;
  LoadTimes fill_coded(const ShardSource& source, std::size_t begin, Pages& pages, int threads,
                       const std::function<void()>& poll) const;
  Pages allocate(const ShardLayout& layout, const std::string& name) const;
  Pages load(const ShardSource& source, int threads, LoadTimes& times, const std::function<void()>& poll) const;
  Pages load_for_others(const PageStore& store, int shard, int threads, LoadTimes& times,
                        const std::function<void()>& poll) const;
  ModelId keep(const std::string& name, const ShardLayout& layout, std::shared_ptr<Pages> pages);

  Device& device_;
  const PageCoding coding_;
  std::deque<Model> models_;                      // [model]; a deque, since page names borrow the models' names
  std::vector<std::shared_ptr<Pages>> of_shard_;  // [shard] of a PageStore
};

}  // namespace computron
