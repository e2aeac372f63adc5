#include "computron/model/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace computron {
namespace {

constexpr std::size_t kAlignment = 64;  // of every panel, for vector loads
constexpr int kPanelRows = 512;

// Bytes of `rows` rows of a tensor as they lie in a page.
std::size_t bytes_of(const ShardTensor& t, int rows, const WeightFormat& format, DType dtype) {
  switch (t.role) {
    case TensorRole::kGemmWeight: return format.panel_bytes(rows, t.columns, dtype);
    case TensorRole::kTable: return static_cast<std::size_t>(rows) * t.columns * sizeof(float);
    case TensorRole::kVector: break;
  }
  return static_cast<std::size_t>(rows) * sizeof(float);
}

// The smallest number of rows that may not be cut.
int row_block(const ShardTensor& t, const WeightFormat& format) {
  switch (t.role) {
    case TensorRole::kGemmWeight: return format.row_block();
    case TensorRole::kTable: return 1;
    case TensorRole::kVector: break;
  }
  return t.rows;
}

class Layouter {
 public:
  Layouter(Image& image, const WeightFormat& format) : image_(image), format_(format) {}

  void run() {
    for (const ShardTensor& tensor : image_.plan.tensors) {
      if (tensor.same_as >= 0) {
        revisit(image_.tensors[tensor.same_as]);
      } else {
        place(tensor);
      }
    }
    find_ends_of_uses();
  }

 private:
  void place(const ShardTensor& t) {
    ImageTensor placed;
    const int block = row_block(t, format_);
    for (int row = 0; row < t.rows;) {
      int rows = rows_that_fit(t, block, t.rows - row);
      if (rows == 0) {
        next_page();
        rows = rows_that_fit(t, block, t.rows - row);
        if (rows == 0) refuse(t, block);
      }
      placed.panels.push_back(append(t, row, rows));
      row += rows;
    }
    placed.last_use = placed.panels.back().use;
    image_.tensors.push_back(std::move(placed));
  }

  // Rows of the next panel: as many whole blocks as the open page has room for, at most a panel's.
  int rows_that_fit(const ShardTensor& t, int block, int rows_left) const {
    if (image_.used_bytes.empty()) return 0;
    const std::size_t room = image_.page_bytes - std::min(image_.page_bytes, start_of_next());
    const int limit = t.role == TensorRole::kGemmWeight ? round_up(kPanelRows, block) : rows_left;
    const auto blocks = static_cast<int>(std::min<std::size_t>(room / bytes_of(t, block, format_, image_.weight_dtype),
                                                               ceil_div(std::min(limit, rows_left), block)));
    return std::min(blocks * block, rows_left);
  }

  PanelPlace append(const ShardTensor& t, int row, int rows) {
    const PanelPlace place{.use = static_cast<PageUse>(image_.uses.size() - 1),
                           .page = static_cast<PageId>(image_.pages() - 1),
                           .offset = start_of_next(),
                           .row_begin = row,
                           .rows = rows};
    image_.used_bytes.back() = place.offset + bytes_of(t, rows, format_, image_.weight_dtype);
    return place;
  }

  std::size_t start_of_next() const { return round_up(image_.used_bytes.back(), kAlignment); }

  void next_page() {
    image_.uses.push_back(static_cast<PageId>(image_.pages()));
    image_.used_bytes.push_back(0);
  }

  // The same panels, visited again.
  void revisit(const ImageTensor& earlier) {
    ImageTensor again = earlier;
    for (PanelPlace& panel : again.panels) {
      if (image_.uses.back() != panel.page) image_.uses.push_back(panel.page);
      panel.use = static_cast<PageUse>(image_.uses.size() - 1);
    }
    again.last_use = again.panels.back().use;
    image_.tensors.push_back(std::move(again));
  }

  // A use is over after a tensor when no later tensor begins in it.
  void find_ends_of_uses() {
    auto next_begin = static_cast<std::int64_t>(image_.uses.size());
    for (auto t = image_.tensors.rbegin(); t != image_.tensors.rend(); ++t) {
      t->uses_over = std::min<std::int64_t>(t->last_use, next_begin - 1);
      next_begin = t->panels.front().use;
    }
  }

  [[noreturn]] void refuse(const ShardTensor& t, int block) const {
    throw ConfigError(fmt::format("a page of {} bytes cannot hold {} rows of {} ({} bytes); use a larger --page-size",
                                  image_.page_bytes, block, t.name, bytes_of(t, block, format_, image_.weight_dtype)));
  }

  Image& image_;
  const WeightFormat& format_;
};

}  // namespace

std::size_t Image::total_used_bytes() const {
  return std::accumulate(used_bytes.begin(), used_bytes.end(), std::size_t{0});
}

std::size_t Image::waste_bytes() const { return used_bytes.size() * page_bytes - total_used_bytes(); }

Image Image::make(const ShardPlan& plan, const WeightFormat& format, DType weight_dtype, std::size_t page_bytes) {
  Image image{.plan = plan,
              .weight_dtype = weight_dtype,
              .page_bytes = page_bytes,
              .tensors = {},
              .used_bytes = {},
              .uses = {}};
  Layouter(image, format).run();
  return image;
}

std::size_t Image::largest_block_bytes(const ShardPlan& plan, const WeightFormat& format, DType weight_dtype) {
  std::size_t largest = 0;
  for (const ShardTensor& t : plan.tensors) {
    largest = std::max(largest, bytes_of(t, row_block(t, format), format, weight_dtype));
  }
  return largest;
}

}  // namespace computron
