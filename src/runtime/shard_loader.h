// Fills the pages of a rank's shard from a checkpoint, with all threads at work until the last byte.
//
//   read -> verify -> widen -> page memory -> pack -> complete pages: digest, and code
//
// A work item is one digest chunk of a stored tensor, as far as it lies in the rank's slice, so that each is read once
// (one that two slices share, once for each), verified and packed while it is in the cache. Threads take items in the
// order of the pages. Rows and chunks need not line up: what an item holds is whole rows with a part of one at either
// end. Whoever writes the last of a page puts it on a list, from which every thread takes a few after each item, so
// that the pages of a row-parallel tensor, which its last item completes all at once, are finished by all threads.
//
// Memory exists from the moment somebody is about to write it, two megabytes at a time: zeroing just before the write
// leaves it in the cache, and no two threads zero the same.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "computron/checkpoint/reader.h"
#include "computron/model/shard_layout.h"
#include "computron/runtime/host_store.h"
#include "src/runtime/load_pages.h"

namespace computron {

class ShardLoader {
 public:
  // Takes a page whose bytes are complete, once each; on thread `thread` of load(), whose times it adds to.
  using PageDone = std::function<void(PageId page, int thread, LoadTimes& times)>;
  // Borrows everything. `pages`: zeros.
  ShardLoader(const CheckpointIndex& index, const ShardLayout& layout, int t, const WeightFormat& format,
              LoadPages& pages, PageDone done);

  // Once. CheckpointError or Error{kSystem}; the first of any thread ends all.
  LoadTimes load(int threads, const std::function<void()>& poll = {});

 private:
  // Stored rows [begin, end) of a tensor, or of the scales of its codes: rows (transposed: columns, or groups of them)
  // of a shard tensor.
  struct Slice {
    int tensor = 0;  // of the plan
    const TensorEntry* entry = nullptr;
    std::size_t begin = 0, end = 0;
    std::size_t width = 0;  // elements of a stored row
    bool transposed = false;
    int row = 0;     // of the shard tensor: where stored row `begin` goes; transposed: where its first element goes
    int column = 0;  // transposed: where stored row `begin` goes; else where its first element goes
    bool scales = false;
    // Of transposed scales: columns of the shard that one covers, from `column` on; the codes end before `column_end`.
    int group = 0, column_begin = 0, column_end = 0;
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
    std::array<float, kWidened> widened;  // or narrowed
    TensorReader::Times reading;
    LoadTimes times;
  };

  void add_slices(int tensor, const TensorPart& part, int t);
  void add_scales(const Slice& codes);
  void add_items(const Slice& slice);
  void load(const Item& item, Worker& worker);
  void place(const Slice& slice, std::size_t first, std::span<const std::byte> bytes, Worker& worker);
  void widen_and_place(const Slice& slice, std::size_t first, std::span<const std::byte> bytes, Worker& worker);
  // `count` elements of a slice become what is placed, in worker.widened.
  void widen(const Slice& slice, const std::byte* stored, std::size_t count, Worker& worker) const;
  void place_elements(const Slice& slice, std::size_t first, std::size_t count, const std::byte* source) const;
  void place_piece(const Slice& slice, const Piece& piece) const;
  void place_packed(const Slice& slice, const Piece& piece) const;
  void place_scales(const Slice& slice, const Piece& piece) const;
  void place_plain(const Slice& slice, const Piece& piece) const;
  void place_low_rank_out(const Slice& slice, const Piece& piece) const;
  void touch(const Item& item);
  void note_complete_pages(const Item& item);
  // That a thread finishes between two items: its part of those that are complete, however many an item completes, so
  // that few are complete at any time, and many that are so at once are finished by all.
  std::size_t pages_a_turn(int threads);
  std::optional<PageId> take_complete_page();
  void finish_pages(std::size_t most, int thread, LoadTimes& times);

  bool is_packed(int tensor) const { return layout_.plan.tensors[tensor].role == TensorRole::kGemmWeight; }
  const WeightType& type_of(const Slice& slice) const { return layout_.plan.tensors[slice.tensor].type; }
  // What elements are when they are placed; of four bits one has a byte.
  DType placed_dtype(const Slice& slice) const;
  std::size_t placed_bytes(const Slice& slice) const { return std::max<std::size_t>(size_of(placed_dtype(slice)), 1); }
  std::byte* at(const PanelPlace& panel) const { return pages_.at(panel.page) + panel.offset; }
  // Bytes [begin, end) of the slice's tensor that an item holds.
  static std::pair<std::size_t, std::size_t> range_of(const Slice& slice, std::size_t chunk);
  // Rows [row, row + rows) of a panel: those from `first` on of the rows that are asked for.
  struct PanelPart {
    std::byte* panel;
    int row, rows;
    std::size_t first;
  };
  void place_factor(const Slice& slice, const PanelPart& part) const;
  // body(part) for rows [row, row + rows) of the slice's tensor.
  template <class Body>
  void for_each_panel_with(const Slice& slice, int row, int rows, const Body& body) const;
  // body(panel, begin, end): rows [begin, end) of the tensor in this panel are what an item writes to.
  template <class Body>
  void for_each_panel(const Item& item, const Body& body) const;
  template <class Body>
  void for_each_page(const Item& item, const Body& body) const;

  const CheckpointIndex& index_;
  const ShardLayout& layout_;
  const WeightFormat& format_;
  LoadPages& pages_;
  const PageDone done_;
  TensorReader reader_;
  std::vector<Slice> slices_;
  std::vector<Item> items_;
  std::vector<std::atomic<std::uint32_t>> items_left_;  // [page]
  std::mutex mutex_;
  std::vector<PageId> complete_;  // guarded by mutex_: those that nobody has finished
};

}  // namespace computron
