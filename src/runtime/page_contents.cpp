#include "computron/runtime/page_contents.h"

#include <algorithm>

#include "computron/base/bytes.h"

namespace computron {
namespace {

class ContentsWriter {
 public:
  ContentsWriter(const CheckpointIndex& index, const ShardLayout& layout)
      : index_(index), layout_(layout), pages_(layout.used_bytes.size()) {
    for (std::size_t page = 0; page < pages_.size(); ++page) pages_[page].put(layout.used_bytes[page]);
  }

  void add_rank(int t) {
    for (std::size_t tensor = 0; tensor < layout_.plan.tensors.size(); ++tensor) {
      if (layout_.plan.tensors[tensor].same_as >= 0) continue;
      for (const PanelPlace& panel : layout_.tensors[tensor].panels) {
        add_panel(layout_.plan.tensors[tensor], panel, t, pages_[panel.page]);
      }
    }
  }

  std::vector<Digest128> digests() const {
    std::vector<Digest128> digests;
    for (const ByteWriter& page : pages_) digests.push_back(digest128(page.bytes()));
    return digests;
  }

 private:
  void add_panel(const ShardTensor& tensor, const PanelPlace& panel, int t, ByteWriter& out) const {
    out.put(panel.offset);
    out.put(panel.rows);
    out.put(tensor.role);
    out.put(tensor.columns);
    out.put(tensor.type.values);
    out.put(tensor.type.codes);
    out.put(tensor.type.scales);
    out.put(tensor.type.group);
    for (const TensorPart& part : tensor.parts) {
      for (const PartSlice& slice : part.slices(t)) add_slice(part, slice, panel, out);
    }
  }

  // The rows of the panel that come from the slice, if any. A slice of a transposed part goes to columns of all of the
  // part's rows.
  void add_slice(const TensorPart& part, const PartSlice& slice, const PanelPlace& panel, ByteWriter& out) const {
    const TensorEntry& entry = index_.tensors.at(part.source);
    const std::size_t width = entry.bytes * 8 / bits_of(entry.dtype) / part.total;  // values of a stored row
    const auto panel_begin = static_cast<std::int64_t>(panel.row_begin), panel_end = panel_begin + panel.rows;
    const std::int64_t begin = part.row + (part.transposed ? 0 : static_cast<std::int64_t>(slice.row));
    const std::int64_t rows = static_cast<std::int64_t>(part.transposed ? width : slice.end - slice.begin);
    const std::int64_t first = std::max(begin, panel_begin), last = std::min(begin + rows, panel_end);
    if (first >= last) return;
    out.put(part.transposed);
    out.put(entry.dtype);
    out.put(width);
    out.put(first - panel_begin);
    out.put(last - first);
    if (part.transposed) {
      out.put(first - begin);
      out.put(slice.row);
      add_stored(entry, slice.begin, slice.end, width, out);
    } else {
      const auto from = slice.begin + static_cast<std::size_t>(first - begin);
      add_stored(entry, from, from + static_cast<std::size_t>(last - first), width, out);
    }
    if (entry.group > 0) add_scales(entry, slice, first - begin, out);
  }

  // Stored rows [begin, end).
  static void add_stored(const TensorEntry& entry, std::size_t begin, std::size_t end, std::size_t width,
                         ByteWriter& out) {
    const std::size_t from = bytes_of(entry.dtype, begin * width), to = bytes_of(entry.dtype, end * width);
    out.put(from % kDigestChunkBytes);
    out.put(to - from);
    for (std::size_t chunk = from / kDigestChunkBytes; chunk * kDigestChunkBytes < to; ++chunk) {
      out.put(entry.digests[chunk]);
    }
  }

  // All of them: they are few.
  void add_scales(const TensorEntry& codes, const PartSlice& slice, std::int64_t first, ByteWriter& out) const {
    const TensorEntry& scales = index_.tensors.at(scales_name(codes.name));
    out.put(codes.group);
    out.put(scales.dtype);
    out.put(scales.factor);
    out.put_list(scales.shape);
    out.put_list(scales.digests);
    out.put(slice.begin);
    out.put(slice.end);
    out.put(first);
  }

  const CheckpointIndex& index_;
  const ShardLayout& layout_;
  std::vector<ByteWriter> pages_;
};

}  // namespace

std::vector<Digest128> page_contents(const CheckpointIndex& index, const ShardLayout& layout, int tp) {
  ContentsWriter writer(index, layout);
  for (int t = 0; t < tp; ++t) writer.add_rank(t);
  return writer.digests();
}

std::optional<Digest128> family_digest(const ShardLayout& layout) {
  ModelConfig config = layout.plan.config;
  const auto of_head = [](const auto& adapted) { return adapted.first.starts_with("head."); };
  if (layout.contents.empty() || config.experts > 0 || config.pools() ||
      std::ranges::any_of(config.adapter_ranks, of_head)) {
    return std::nullopt;
  }
  config.adapter_ranks.clear();
  config.eos_tokens.clear();
  ByteWriter out;
  out.put_string(config.to_json());
  for (PageId page = 0; page < layout.contents.size(); ++page) {
    if (!std::ranges::binary_search(layout.adapter_pages, page)) out.put(layout.contents[page]);
  }
  return digest128(out.bytes());
}

}  // namespace computron
