// The pages of a rank's shard of every model, in host memory. Written once by the loader, read-only afterwards. Models
// may have the same pages, and so may other ranks of the node (page_store.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
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
  double digest_s = 0;  // of the pages
  LoadTimes& operator+=(const LoadTimes& other);
};

class HostStore {
 public:
  explicit HostStore(Device& device) : device_(device) {}

  // Adds a model whose pages `fill(pages, offsets)` writes: page p at pages + offsets[p], into zeroed memory, which
  // `threads` threads then digest and which becomes read-only. Models are numbered in the order of adding; `name` is
  // the model's name in errors and traces. Error{kSystem} naming the model where memory runs out.
  using Fill = std::function<void(std::byte* pages, const std::vector<std::size_t>& offsets)>;
  ModelId add(const ShardLayout& layout, const std::string& name, const Fill& fill, int threads = 1);

  // Adds a model from a checkpoint: reads rank t's slices, verifies their digests and packs them into pages, with
  // `threads` threads. Beside the pages it holds 1.5 MiB a thread, never a whole tensor. `times` (may be null) is set
  // to the time that it took. `poll` is called now and then on this thread. CheckpointError, or Error{kSystem}.
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

  const std::byte* page(ModelId model, PageId page) const {
    return models_[model].pages->buffer->data() + models_[model].pages->offsets[page];
  }
  std::size_t page_used_bytes(ModelId model, PageId page) const { return models_[model].layout->used_bytes[page]; }
  // digest64 of the page's used bytes, taken when they were written: its copies must have it (CopyStream::fetch).
  std::uint64_t page_digest(ModelId model, PageId page) const { return models_[model].pages->digests[page]; }
  PageName page_name(ModelId model, PageId page) const { return {models_[model].name, page}; }
  std::string_view name(ModelId model) const { return models_[model].name; }
  int models() const { return static_cast<int>(models_.size()); }
  int pages(ModelId model) const { return models_[model].layout->pages(); }
  // Host bytes that a layout's pages take.
  static std::size_t bytes_of(const ShardLayout& layout);

 private:
  struct Pages {
    std::unique_ptr<HostBuffer> buffer;
    std::vector<std::size_t> offsets;    // [page], 4096-aligned
    std::vector<std::uint64_t> digests;  // [page]
  };
  struct Model {
    std::string name;
    const ShardLayout* layout;
    std::shared_ptr<Pages> pages;
  };
  static Pages place(const ShardLayout& layout, std::unique_ptr<HostBuffer> memory);
  Pages allocate(const ShardLayout& layout, const std::string& name) const;
  static LoadTimes fill(const ShardSource& source, Pages& pages, int threads, const std::function<void()>& poll);
  Pages load(const ShardSource& source, int threads, LoadTimes& times, const std::function<void()>& poll) const;
  Pages load_for_others(const PageStore& store, int shard, int threads, LoadTimes& times,
                        const std::function<void()>& poll) const;
  ModelId keep(const std::string& name, const ShardLayout& layout, std::shared_ptr<Pages> pages);

  Device& device_;
  std::deque<Model> models_;                      // [model]; a deque, since page names borrow the models' names
  std::vector<std::shared_ptr<Pages>> of_shard_;  // [shard] of a PageStore
};

}  // namespace computron
