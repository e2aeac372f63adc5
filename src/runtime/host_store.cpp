#include "computron/runtime/host_store.h"

#include <algorithm>
#include <cstring>

#include "computron/base/digest.h"
#include "computron/base/parallel.h"

namespace computron {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kPageAlignment = 4096;

// Widens `count` elements of a piece to the type that lies in pages.
void convert(const std::byte* in, DType from, std::byte* out, DType to, std::size_t count) {
  ensure(to == DType::kF32, "pages hold either the checkpoint's type or float32");
  const auto* bits = reinterpret_cast<const std::uint16_t*>(in);
  auto* values = reinterpret_cast<float*>(out);
  if (from == DType::kF16) {
    for (std::size_t i = 0; i < count; ++i) values[i] = f32_from_f16(bits[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] = f32_from_bf16(bits[i]);
  }
}

// Puts one source tensor's slice into the pages of one shard tensor.
class SliceLoader {
 public:
  SliceLoader(const TensorReader& reader, const CheckpointIndex& index, const Image& image, int t,
              const WeightFormat& format, std::byte* pages, const std::vector<std::size_t>& offsets)
      : reader_(reader), index_(index), image_(image), t_(t), format_(format), pages_(pages), offsets_(offsets) {}

  void load(int tensor, const TensorPart& part) const {
    for (const PartSlice& slice : part.slices(t_)) load(tensor, part, slice);
  }

 private:
  void load(int tensor, const TensorPart& part, const PartSlice& slice) const {
    const TensorEntry& entry = index_.tensors.at(part.source);
    const std::size_t row_elements = entry.bytes / size_of(entry.dtype) / part.total;
    const std::size_t row_bytes = row_elements * size_of(entry.dtype);
    std::vector<std::byte> pending, converted;  // whole stored rows wait for nothing, the rest for the next piece
    std::size_t row = slice.row;                // of the part
    reader_.read(entry, slice.begin * row_bytes, slice.end * row_bytes, kPieceBytes, [&](std::size_t, auto piece) {
      pending.insert(pending.end(), piece.begin(), piece.end());
      const std::size_t rows = pending.size() / row_bytes;
      const std::byte* source = in_packed_dtype(tensor, entry.dtype, pending, rows * row_elements, converted);
      place(tensor, part, row, rows, row_elements, source);
      pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(rows * row_bytes));
      row += rows;
    });
  }

  DType packed_dtype(int tensor) const {
    return image_.plan.tensors[tensor].role == TensorRole::kGemmWeight ? image_.weight_dtype : DType::kF32;
  }

  const std::byte* in_packed_dtype(int tensor, DType stored, const std::vector<std::byte>& bytes, std::size_t count,
                                   std::vector<std::byte>& converted) const {
    const DType packed = packed_dtype(tensor);
    if (packed == stored) return bytes.data();
    converted.resize(count * size_of(packed));
    convert(bytes.data(), stored, converted.data(), packed, count);
    return converted.data();
  }

  // Stored rows [first, first + count) of the slice, each `width` elements.
  void place(int tensor, const TensorPart& part, std::size_t first, std::size_t count, std::size_t width,
             const std::byte* source) const {
    if (image_.plan.tensors[tensor].role != TensorRole::kGemmWeight) {
      place_plain(tensor, part.row + first, count, width, source);
    } else if (part.transposed) {  // stored row = column of the weight
      place_packed(tensor, part.row, static_cast<int>(width), static_cast<int>(first), static_cast<int>(count), source,
                   /*row_stride=*/1, /*column_stride=*/width);
    } else {
      place_packed(tensor, part.row + static_cast<int>(first), static_cast<int>(count), 0, static_cast<int>(width),
                   source, /*row_stride=*/width, /*column_stride=*/1);
    }
  }

  std::byte* at(const PanelPlace& panel) const { return pages_ + offsets_[panel.page] + panel.offset; }

  void place_plain(int tensor, std::size_t row, std::size_t rows, std::size_t width, const std::byte* source) const {
    for (const PanelPlace& panel : image_.tensors[tensor].panels) {
      const std::size_t begin = std::max<std::size_t>(row, panel.row_begin);
      const std::size_t end = std::min<std::size_t>(row + rows, panel.row_begin + panel.rows);
      if (begin >= end) continue;
      const std::size_t row_bytes = width * sizeof(float);
      std::memcpy(at(panel) + (begin - panel.row_begin) * row_bytes, source + (begin - row) * row_bytes,
                  (end - begin) * row_bytes);
    }
  }

  // Rows [row, row + rows) × columns [column, column + columns) of the shard's weight, strides in elements.
  void place_packed(int tensor, int row, int rows, int column, int columns, const std::byte* source,
                    std::size_t row_stride, std::size_t column_stride) const {
    const int in = image_.plan.tensors[tensor].columns;
    for (const PanelPlace& panel : image_.tensors[tensor].panels) {
      const int begin = std::max(row, panel.row_begin), end = std::min(row + rows, panel.row_begin + panel.rows);
      if (begin >= end) continue;
      format_.pack(at(panel), in, image_.weight_dtype, begin - panel.row_begin, end - begin, column, columns,
                   source + (begin - row) * row_stride * size_of(image_.weight_dtype), row_stride, column_stride);
    }
  }

  const TensorReader& reader_;
  const CheckpointIndex& index_;
  const Image& image_;
  int t_;
  const WeightFormat& format_;
  std::byte* pages_;
  const std::vector<std::size_t>& offsets_;
};

}  // namespace

std::size_t HostStore::bytes_of(const Image& image) {
  std::size_t bytes = 0;
  for (const std::size_t used : image.used_bytes) bytes += round_up(used, kPageAlignment);
  return bytes;
}

ModelId HostStore::add(const Image& image, const std::string& name, const Fill& fill, int threads) {
  Model model{.name = name,
              .image = &image,
              .buffer = device_.allocate_host(bytes_of(image), "model " + name),
              .offsets = {},
              .digests = std::vector<std::uint64_t>(image.used_bytes.size())};
  std::size_t offset = 0;
  for (const std::size_t used : image.used_bytes) {
    model.offsets.push_back(offset);
    offset += round_up(used, kPageAlignment);
  }
  fill(model.buffer->data(), model.offsets);
  model.buffer->make_read_only();
  parallel_for(image.used_bytes.size(), threads, [&](int, std::size_t page) {
    model.digests[page] = digest64({model.buffer->data() + model.offsets[page], image.used_bytes[page]});
  });
  models_.push_back(std::move(model));
  return static_cast<ModelId>(models_.size() - 1);
}

ModelId HostStore::load(const CheckpointIndex& index, const std::string& name, const Image& image, int t,
                        const WeightFormat& format, int threads) {
  std::vector<std::pair<int, const TensorPart*>> slices;
  for (std::size_t i = 0; i < image.plan.tensors.size(); ++i) {
    if (image.plan.tensors[i].same_as >= 0) continue;
    for (const TensorPart& part : image.plan.tensors[i].parts) slices.emplace_back(static_cast<int>(i), &part);
  }
  const auto fill = [&](std::byte* pages, const std::vector<std::size_t>& offsets) {
    const TensorReader reader(index);
    const SliceLoader loader(reader, index, image, t, format, pages, offsets);
    parallel_for(slices.size(), threads,
                 [&](int, std::size_t i) { loader.load(slices[i].first, *slices[i].second); });
  };
  return add(image, name, fill, threads);
}

}  // namespace computron
