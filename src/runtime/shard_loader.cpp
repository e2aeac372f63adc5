#include "src/runtime/shard_loader.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "computron/base/convert.h"
#include "computron/base/parallel.h"
#include "computron/base/stop.h"
#include "src/runtime/lap.h"

namespace computron {
namespace {

// An even number of codes of four bits becomes a byte each.
void split_nibbles(const std::byte* __restrict stored, std::size_t count, std::byte* __restrict to) {
  for (std::size_t i = 0; i < count / 2; ++i) {
    to[2 * i] = stored[i] & std::byte{15};
    to[2 * i + 1] = stored[i] >> 4;
  }
}

}  // namespace

ShardLoader::ShardLoader(const CheckpointIndex& index, const ShardLayout& layout, int t, const WeightFormat& format,
                         LoadPages& pages, PageDone done)
    : index_(index),
      layout_(layout),
      format_(format),
      pages_(pages),
      done_(std::move(done)),
      reader_(index),
      items_left_(layout.used_bytes.size()) {
  for (std::size_t i = 0; i < layout.plan.tensors.size(); ++i) {
    if (layout.plan.tensors[i].same_as >= 0) continue;
    for (const TensorPart& part : layout.plan.tensors[i].parts) add_slices(static_cast<int>(i), part, t);
  }
  std::erase_if(items_, [this](const Item& item) {  // those of pages that lie elsewhere
    bool none = true;
    for_each_page(item, [&](PageId page) {
      ++items_left_[page];
      none = false;
    });
    return none;
  });
}

void ShardLoader::add_slices(int tensor, const TensorPart& part, int t) {
  const TensorEntry& entry = index_.tensors.at(part.source);
  const std::size_t width = entry.bytes * 8 / bits_of(entry.dtype) / part.total;
  for (const PartSlice& slice : part.slices(t)) {
    const int place = static_cast<int>(slice.row);
    const Slice values{.tensor = tensor,
                       .entry = &entry,
                       .begin = slice.begin,
                       .end = slice.end,
                       .width = width,
                       .transposed = part.transposed,
                       .row = part.row + (part.transposed ? 0 : place),
                       .column = part.transposed ? place : 0};
    add_items(values);
    if (entry.group > 0) add_scales(values);
  }
}

// Where rows have one scale each, all slices of a transposed weight have the same, which the first of them brings.
void ShardLoader::add_scales(const Slice& codes) {
  Slice scales = codes;
  scales.entry = &index_.tensors.at(scales_name(codes.entry->name));
  scales.scales = true;
  const std::vector<std::size_t>& shape = scales.entry->shape;  // [out, groups], or transposed
  scales.width = shape.back();
  if (codes.transposed) {
    const bool whole_row = codes.entry->group == WeightType::kWholeRow;
    if (whole_row && codes.column > 0) return;
    const std::size_t group = whole_row ? codes.entry->shape.front() : static_cast<std::size_t>(codes.entry->group);
    scales.begin = codes.begin / group;
    scales.end = ceil_div(codes.end, group);
    scales.group = static_cast<int>(group);
    scales.column = codes.column - static_cast<int>(codes.begin % group);
    scales.column_begin = codes.column;
    scales.column_end = whole_row ? layout_.plan.tensors[codes.tensor].columns
                                  : codes.column + static_cast<int>(codes.end - codes.begin);
  }
  add_items(scales);
}

void ShardLoader::add_items(const Slice& slice) {
  slices_.push_back(slice);
  const std::size_t row_bytes = bytes_of(slice.entry->dtype, slice.width);
  const std::size_t last = ceil_div(slice.end * row_bytes, kDigestChunkBytes);
  for (std::size_t chunk = slice.begin * row_bytes / kDigestChunkBytes; chunk < last; ++chunk) {
    items_.push_back({slices_.size() - 1, chunk});
  }
}

std::pair<std::size_t, std::size_t> ShardLoader::range_of(const Slice& slice, std::size_t chunk) {
  const std::size_t row_bytes = bytes_of(slice.entry->dtype, slice.width);
  return {std::max(slice.begin * row_bytes, chunk * kDigestChunkBytes),
          std::min(slice.end * row_bytes, (chunk + 1) * kDigestChunkBytes)};
}

LoadTimes ShardLoader::load(int threads, const std::function<void()>& poll) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < threads; ++i) workers.push_back(std::make_unique_for_overwrite<Worker>());
  for (PageId page = 0; page < items_left_.size(); ++page) {
    if (items_left_[page] == 0) complete_.push_back(page);  // padding only
  }
  parallel_for(items_.size(), threads, [&](int thread, std::size_t i) {
    load(items_[i], *workers[thread]);
    finish_pages(pages_a_turn(threads), thread, workers[thread]->times);
    if (thread == 0 && poll) poll();
  });
  parallel_for(complete_.size(), threads, [&](int thread, std::size_t) {
    finish_pages(1, thread, workers[thread]->times);
    if (thread == 0 && poll) poll();
  });
  LoadTimes times;
  for (const auto& worker : workers) {
    worker->times.read_s = worker->reading.read_s;
    worker->times.verify_s = worker->reading.verify_s;
    times += worker->times;
  }
  return times;
}

void ShardLoader::load(const Item& item, Worker& worker) {
  throw_if_stopped();
  const Slice& slice = slices_[item.slice];
  const std::span chunk = reader_.read_chunk(*slice.entry, item.chunk, worker.chunk, &worker.reading);
  const auto [begin, end] = range_of(slice, item.chunk);
  const std::size_t first = begin * 8 / bits_of(slice.entry->dtype) - slice.begin * slice.width;
  {
    const Lap lap(worker.times.memory_s);
    touch(item);
  }
  place(slice, first, chunk.subspan(begin - item.chunk * kDigestChunkBytes, end - begin), worker);
  note_complete_pages(item);
}

// Elements of a slice from its `first` on, as they are stored.
void ShardLoader::place(const Slice& slice, std::size_t first, std::span<const std::byte> bytes, Worker& worker) {
  if (two_in_a_byte(slice.entry->dtype) || slice.entry->dtype != placed_dtype(slice)) {
    return widen_and_place(slice, first, bytes, worker);
  }
  const Lap lap(worker.times.pack_s);
  place_elements(slice, first, bytes.size() / size_of(slice.entry->dtype), bytes.data());
}

// By whole rows, and these by whole blocks, as far as such pieces are small enough.
void ShardLoader::widen_and_place(const Slice& slice, std::size_t first, std::span<const std::byte> bytes,
                                  Worker& worker) {
  const DType stored = slice.entry->dtype;
  const std::size_t block = slice.width * static_cast<std::size_t>(format_.row_block());
  const std::size_t room = sizeof worker.widened / placed_bytes(slice);
  const std::size_t unit = block <= room ? block : slice.width <= room ? slice.width : 1;
  const std::size_t step = room / unit * unit;
  const std::size_t end = first + bytes.size() * 8 / bits_of(stored);
  for (std::size_t at = first, next; at < end; at = next) {
    next = std::min(end, round_up(at + 1, step));
    {
      const Lap lap(worker.times.widen_s);
      widen(slice, bytes.data() + bytes_of(stored, at - first), next - at, worker);
    }
    const Lap lap(worker.times.pack_s);
    place_elements(slice, at, next - at, std::as_bytes(std::span(worker.widened)).data());
  }
}

void ShardLoader::widen(const Slice& slice, const std::byte* stored, std::size_t count, Worker& worker) const {
  auto* to = reinterpret_cast<std::byte*>(worker.widened.data());
  if (two_in_a_byte(slice.entry->dtype)) {
    split_nibbles(stored, count, to);
    return;
  }
  const bool of_adapter = layout_.plan.tensors[slice.tensor].of_adapter();
  ensure(of_adapter || placed_dtype(slice) == DType::kF32, "pages hold either the checkpoint's type or float32");
  convert_elements(stored, slice.entry->dtype, to, placed_dtype(slice), count);
}

DType ShardLoader::placed_dtype(const Slice& slice) const {
  return slice.scales ? type_of(slice).scales : type_of(slice).codes;
}

// Elements [first, first + count) of a slice: the rest of a row, whole rows, the beginning of a row.
void ShardLoader::place_elements(const Slice& slice, std::size_t first, std::size_t count,
                                 const std::byte* source) const {
  const std::size_t width = slice.width, size = placed_bytes(slice);
  for (const std::size_t end = first + count; first < end;) {
    const std::size_t column = first % width;
    const std::size_t rows = column == 0 ? std::max<std::size_t>((end - first) / width, 1) : 1;
    const std::size_t columns = std::min(width - column, end - first);
    place_piece(slice, {first / width, rows, column, columns, source});
    first += rows == 1 ? columns : rows * width;
    source += (rows == 1 ? columns : rows * width) * size;
  }
}

void ShardLoader::place_piece(const Slice& slice, const Piece& piece) const {
  if (!is_packed(slice.tensor)) return place_plain(slice, piece);
  slice.scales ? place_scales(slice, piece) : place_packed(slice, piece);
}

template <class Body>
void ShardLoader::for_each_panel_with(const Slice& slice, int row, int rows, const Body& body) const {
  for (const PanelPlace& panel : layout_.tensors[slice.tensor].panels) {
    const int begin = std::max(row, panel.row_begin), end = std::min(row + rows, panel.row_begin + panel.rows);
    if (begin >= end) continue;
    body(PanelPart{at(panel), begin - panel.row_begin, end - begin, static_cast<std::size_t>(begin - row)});
  }
}

void ShardLoader::place_packed(const Slice& slice, const Piece& piece) const {
  const int in = layout_.plan.tensors[slice.tensor].columns;
  const bool turned = slice.transposed;
  const int row = slice.row + static_cast<int>(turned ? piece.column : piece.row);
  const int rows = static_cast<int>(turned ? piece.columns : piece.rows);
  const int column = slice.column + static_cast<int>(turned ? piece.row : piece.column);
  const int columns = static_cast<int>(turned ? piece.rows : piece.columns);
  const std::size_t row_stride = turned ? 1 : slice.width, column_stride = turned ? slice.width : 1;
  for_each_panel_with(slice, row, rows, [&](const PanelPart& part) {
    format_.pack(part.panel, in, type_of(slice), part.row, part.rows, column, columns,
                 piece.source + part.first * row_stride * placed_bytes(slice), row_stride, column_stride);
  });
}

// A stored group of a transposed weight is one or several of the shard's.
void ShardLoader::place_scales(const Slice& slice, const Piece& piece) const {
  const WeightType& type = type_of(slice);
  const int in = layout_.plan.tensors[slice.tensor].columns;
  const std::size_t size = size_of(type.scales);
  if (!slice.transposed) {
    const int row = slice.row + static_cast<int>(piece.row), rows = static_cast<int>(piece.rows);
    return for_each_panel_with(slice, row, rows, [&](const PanelPart& part) {
      format_.pack_scales(part.panel, in, type, part.row, part.rows, static_cast<int>(piece.column),
                          static_cast<int>(piece.columns), piece.source + part.first * slice.width * size, slice.width,
                          /*group_stride=*/1);
      if (piece.column == 0) place_factor(slice, part);
    });
  }
  for (std::size_t i = 0; i < piece.rows; ++i) {
    const int from = slice.column + static_cast<int>(piece.row + i) * slice.group;
    const int group = std::max(from, slice.column_begin) / type.group;
    const int groups = ceil_div(std::min(from + slice.group, slice.column_end), type.group) - group;
    const int row = slice.row + static_cast<int>(piece.column), rows = static_cast<int>(piece.columns);
    for_each_panel_with(slice, row, rows, [&](const PanelPart& part) {
      format_.pack_scales(part.panel, in, type, part.row, part.rows, group, groups,
                          piece.source + (i * slice.width + part.first) * size, /*row_stride=*/1, /*group_stride=*/0);
      if (group == 0) place_factor(slice, part);
    });
  }
}

// Beside the scales of the first group, which of all pieces with scales of a row one has.
void ShardLoader::place_factor(const Slice& slice, const PanelPart& part) const {
  const WeightType& type = type_of(slice);
  if (!type.has_factors()) return;
  format_.pack_factor(part.panel, layout_.plan.tensors[slice.tensor].columns, type, part.row, part.rows,
                      slice.entry->factor);
}

// Vectors and tables: rows as they are stored, but those of B of an adapter.
void ShardLoader::place_plain(const Slice& slice, const Piece& piece) const {
  if (layout_.plan.tensors[slice.tensor].is_low_rank_out()) return place_low_rank_out(slice, piece);
  const std::size_t row = slice.row + piece.row, size = placed_bytes(slice);
  for (const PanelPlace& panel : layout_.tensors[slice.tensor].panels) {
    const std::size_t begin = std::max<std::size_t>(row, panel.row_begin);
    const std::size_t end = std::min<std::size_t>(row + piece.rows, panel.row_begin + panel.rows);
    if (begin >= end) continue;
    // Of several rows all columns are there.
    std::memcpy(at(panel) + ((begin - panel.row_begin) * slice.width + piece.column) * size,
                piece.source + (begin - row) * slice.width * size,
                ((end - begin - 1) * slice.width + piece.columns) * size);
  }
}

// By blocks of rows, [block][column][row of the block] (LowRankPart).
void ShardLoader::place_low_rank_out(const Slice& slice, const Piece& piece) const {
  const std::size_t size = placed_bytes(slice), rank = slice.width;
  const int first = slice.row + static_cast<int>(piece.row);
  for_each_panel_with(slice, first, static_cast<int>(piece.rows), [&](const PanelPart& part) {
    for (int r = 0; r < part.rows; ++r) {
      const std::size_t row = static_cast<std::size_t>(part.row) + static_cast<std::size_t>(r);
      const std::byte* const from = piece.source + (part.first + static_cast<std::size_t>(r)) * rank * size;
      std::byte* const to = part.panel + (row / kLowRankBlock * rank * kLowRankBlock + row % kLowRankBlock) * size;
      for (std::size_t c = 0; c < piece.columns; ++c) {
        std::memcpy(to + (piece.column + c) * kLowRankBlock * size, from + c * size, size);
      }
    }
  });
}

template <class Body>
void ShardLoader::for_each_panel(const Item& item, const Body& body) const {
  const Slice& slice = slices_[item.slice];
  const auto [first, last] = range_of(slice, item.chunk);
  const std::size_t row_bytes = bytes_of(slice.entry->dtype, slice.width);
  const auto rows_from = static_cast<int>(first / row_bytes - slice.begin);
  const auto rows_to = static_cast<int>(ceil_div(last, row_bytes) - slice.begin);
  const int begin = slice.row + (slice.transposed ? 0 : rows_from);
  const int end = slice.row + (slice.transposed ? static_cast<int>(slice.width) : rows_to);
  for (const PanelPlace& panel : layout_.tensors[slice.tensor].panels) {
    const int from = std::max(begin, panel.row_begin), to = std::min(end, panel.row_begin + panel.rows);
    if (from < to) body(panel, from - panel.row_begin, to - panel.row_begin);
  }
}

// Panels of a tensor lie in rising pages.
template <class Body>
void ShardLoader::for_each_page(const Item& item, const Body& body) const {
  std::int64_t previous = -1;
  for_each_panel(item, [&](const PanelPlace& panel, int, int) {
    if (previous != panel.page) body(panel.page);
    previous = panel.page;
  });
}

void ShardLoader::touch(const Item& item) {
  const Slice& slice = slices_[item.slice];
  const ShardTensor& t = layout_.plan.tensors[slice.tensor];
  const bool packed = is_packed(slice.tensor);
  const int block = packed ? format_.row_block() : t.is_low_rank_out() ? kLowRankBlock : 1;
  const std::size_t block_bytes = packed ? format_.panel_bytes(block, t.columns, t.type)
                                         : static_cast<std::size_t>(block) * t.columns * placed_bytes(slice);
  for_each_panel(item, [&](const PanelPlace& panel, int begin, int end) {
    pages_.touch(panel.page, panel.offset + begin / block * block_bytes,
                 panel.offset + ceil_div(end, block) * block_bytes);
  });
}

void ShardLoader::note_complete_pages(const Item& item) {
  for_each_page(item, [&](PageId page) {
    if (items_left_[page].fetch_sub(1) != 1) return;
    const std::lock_guard lock(mutex_);
    complete_.push_back(page);
  });
}

std::size_t ShardLoader::pages_a_turn(int threads) {
  const std::lock_guard lock(mutex_);
  return 2 + complete_.size() / static_cast<std::size_t>(threads);
}

std::optional<PageId> ShardLoader::take_complete_page() {
  const std::lock_guard lock(mutex_);
  if (complete_.empty()) return std::nullopt;
  const PageId page = complete_.back();  // of which the caches hold most
  complete_.pop_back();
  return page;
}

void ShardLoader::finish_pages(std::size_t most, int thread, LoadTimes& times) {
  for (std::size_t i = 0; i < most; ++i) {
    const std::optional<PageId> page = take_complete_page();
    if (!page) return;
    done_(*page, thread, times);
  }
}

}  // namespace computron
