// Fills the pages of a rank's shard from a checkpoint, with all threads at work until the last byte.
//
//   read -> verify -> widen -> page memory -> pack -> digest of complete pages
//
// A work item is one digest chunk of a stored tensor, as far as it lies in the rank's slice, so that each is read once
// (one that two slices share, once for each), verified and packed while it is in the cache. Threads take items in the
// order of the pages. Rows and chunks need not line up: what an item holds is whole rows with a part of one at either
// end, and a page is digested by whoever writes the last of it.
//
// Memory exists from the moment somebody is about to write it, two megabytes at a time: zeroing just before the write
// leaves it in the cache, and no two threads zero the same.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "computron/checkpoint/reader.h"
#include "computron/device/device.h"
#include "computron/model/shard_layout.h"
#include "computron/runtime/host_store.h"

namespace computron {

// Makes memory of a host buffer exist before it is first written, each part once.
class FirstTouch {
 public:
  explicit FirstTouch(HostBuffer& buffer);
  // Returns when bytes [begin, end) exist. Error{kSystem} where memory runs out.
  void touch(std::size_t begin, std::size_t end);

 private:
  enum State : int { kAbsent, kComing, kThere };
  void make(std::size_t part);

  HostBuffer& buffer_;
  std::vector<std::atomic<int>> parts_;  // State
};

class ShardLoader {
 public:
  // Borrows everything. `pages`: zeros, page p at offsets[p]; digests[p] is what load() fills in beside them.
  ShardLoader(const CheckpointIndex& index, const ShardLayout& layout, int t, const WeightFormat& format,
              HostBuffer& pages, const std::vector<std::size_t>& offsets, std::vector<std::uint64_t>& digests);

  // Once. CheckpointError or Error{kSystem}; the first of any thread ends all.
  LoadTimes load(int threads, const std::function<void()>& poll = {});

 private:
  // Stored rows [begin, end) of a tensor: rows (transposed: columns) of a shard tensor.
  struct Slice {
    int tensor = 0;  // of the plan
    const TensorEntry* entry = nullptr;
    std::size_t begin = 0, end = 0;
    std::size_t width = 0;  // elements of a stored row
    bool transposed = false;
    int row = 0;     // of the shard tensor: where stored row `begin` goes; transposed: where its first element goes
    int column = 0;  // transposed: where stored row `begin` goes; else where its first element goes
  };
  struct Item {
    std::size_t slice = 0;
    std::size_t chunk = 0;
  };
  // Elements [column, column + columns) of stored rows [row, row + rows), counted from the slice's first row.
  struct Piece {
    std::size_t row = 0, rows = 0, column = 0, columns = 0;
    const std::byte* source = nullptr;  // of the first element; rows are a slice's width apart
  };
  static constexpr std::size_t kWidened = std::size_t{128} << 10;  // elements: half a megabyte
  struct alignas(4096) Worker {
    std::array<std::byte, kDigestChunkBytes> chunk;
    std::array<float, kWidened> widened;
    TensorReader::Times reading;
    LoadTimes times;
  };

  void add_slices(int tensor, const TensorPart& part, int t);
  void add_items(const Slice& slice);
  void load(const Item& item, Worker& worker);
  void place(const Slice& slice, std::size_t first, std::span<const std::byte> bytes, Worker& worker);
  void widen_and_place(const Slice& slice, std::size_t first, std::span<const std::byte> bytes, Worker& worker);
  void place_elements(const Slice& slice, std::size_t first, std::size_t count, const std::byte* source) const;
  void place_piece(const Slice& slice, const Piece& piece) const;
  void place_packed(const Slice& slice, const Piece& piece) const;
  void place_plain(const Slice& slice, const Piece& piece) const;
  void touch(const Item& item);
  void digest_complete_pages(const Item& item);
  void digest_page(PageId page);

  bool is_packed(int tensor) const { return layout_.plan.tensors[tensor].role == TensorRole::kGemmWeight; }
  DType kept_dtype(int tensor) const { return is_packed(tensor) ? layout_.weight_dtype : DType::kF32; }
  std::byte* at(const PanelPlace& panel) const { return pages_.data() + offsets_[panel.page] + panel.offset; }
  std::span<const std::size_t> used_bytes() const { return layout_.used_bytes; }
  // Bytes [begin, end) of the slice's tensor that an item holds.
  static std::pair<std::size_t, std::size_t> range_of(const Slice& slice, std::size_t chunk);
  // body(panel, begin, end): rows [begin, end) of the tensor in this panel are what an item writes to.
  template <class Body>
  void for_each_panel(const Item& item, const Body& body) const;
  template <class Body>
  void for_each_page(const Item& item, const Body& body) const;

  const CheckpointIndex& index_;
  const ShardLayout& layout_;
  const WeightFormat& format_;
  HostBuffer& pages_;
  const std::vector<std::size_t>& offsets_;
  std::vector<std::uint64_t>& digests_;
  TensorReader reader_;
  FirstTouch memory_;
  std::vector<Slice> slices_;
  std::vector<Item> items_;
  std::vector<std::atomic<std::uint32_t>> items_left_;  // [page]
};

}  // namespace computron
