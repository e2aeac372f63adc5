#include "computron/model/shard_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace computron {
namespace {

constexpr std::size_t kAlignment = 64;  // of every panel, for vector loads
constexpr int kPanelRows = 512;

// Bytes of `rows` rows of a tensor as they lie in a page.
std::size_t bytes_of(const ShardTensor& t, int rows, const WeightFormat& format) {
  if (t.role == TensorRole::kGemmWeight) return format.panel_bytes(rows, t.columns, t.type);
  if (t.role == TensorRole::kVector) return static_cast<std::size_t>(rows) * sizeof(float);
  const int padded = t.is_low_rank_out() ? round_up(rows, kLowRankBlock) : rows;
  return static_cast<std::size_t>(padded) * t.columns * size_of(t.type.values);
}

void set_types(ShardPlan& plan, const WeightFormat& format, const WeightTypes& types) {
  DType input = DType::kF32;  // of the weight before, behind which its adapter stands
  for (ShardTensor& t : plan.tensors) {
    if (t.role == TensorRole::kTable && t.of_adapter()) t.type = input;
    if (t.role != TensorRole::kGemmWeight) continue;
    t.type = types.of(t, plan);
    t.input_dtype = input = format.input_dtype(t.type);
  }
}

// That of what the first layer's queries come from: on every stage the same, whatever its own layers' weights are.
DType cache_dtype_of(const WeightFormat& format, const WeightTypes& types) {
  return format.input_dtype(types.of("layers.0.attention.query.weight"));
}

// The smallest number of rows that may not be cut.
int row_block(const ShardTensor& t, const WeightFormat& format) {
  if (t.role == TensorRole::kGemmWeight) return format.row_block();
  if (t.role == TensorRole::kVector) return t.rows;
  return t.of_adapter() ? kLowRankBlock : 1;
}

class Layouter {
 public:
  Layouter(ShardLayout& layout, const WeightFormat& format) : layout_(layout), format_(format) {}

  void run() {
    for (const ShardTensor& t : layout_.plan.tensors) {
      if (t.same_as >= 0) {
        revisit(layout_.tensors[t.same_as]);
        continue;
      }
      // Variants of a model may have other embeddings, and the same layers in the same places of the pages behind them.
      if (embedding_open_ && !embeds(t)) base_.page = kNone;
      embedding_open_ = embeds(t);
      place(t, t.of_adapter() ? adapter_ : base_);
    }
    for (TensorLayout& tensor : layout_.tensors) tensor.groups = group_panels(tensor.panels);
    find_ends_of_uses();
    find_releases();
    number_tensors();
  }

 private:
  // Pages are filled one by one; those with an adapter's tensors have no others, so that the base's are the same with
  // any adapter.
  static constexpr std::int64_t kNone = -1;
  struct Filling {
    std::int64_t page = kNone;  // what follows begins another
  };

  void place(const ShardTensor& t, Filling& filling) {
    TensorLayout placed;
    const int block = row_block(t, format_);
    if (t.role == TensorRole::kGemmWeight && format_.joins_pages()) move_to_fill_page(t, block, filling);
    for (int row = 0; row < t.rows;) {
      int rows = rows_that_fit(t, block, t.rows - row, filling);
      if (rows == 0) {
        begin_page(filling);
        rows = rows_that_fit(t, block, t.rows - row, filling);
        if (rows == 0) refuse(t, block);
      }
      placed.panels.push_back(append(t, row, rows, static_cast<PageId>(filling.page)));
      row += rows;
    }
    layout_.tensors.push_back(std::move(placed));
  }

  // Of a weight that the open page cannot hold, the rows that it does hold are to end where the page ends: then they
  // and the next page's are one run where the two have neighbouring frames. That takes less than a block's bytes.
  void move_to_fill_page(const ShardTensor& t, int block, const Filling& filling) {
    if (filling.page == kNone) return;
    const auto page = static_cast<PageId>(filling.page);
    const std::size_t start = start_of_next(page), of_block = bytes_of(t, block, format_);
    if (start + of_block > layout_.page_bytes || start + bytes_of(t, t.rows, format_) <= layout_.page_bytes) return;
    const std::size_t left_over = (layout_.page_bytes - start) % of_block;
    if ((start + left_over) % kAlignment == 0) layout_.used_bytes[page] = start + left_over;
  }

  // Rows of the next panel: as many whole blocks as the open page has room for, at most a panel's.
  int rows_that_fit(const ShardTensor& t, int block, int rows_left, const Filling& filling) const {
    if (filling.page == kNone) return 0;
    const std::size_t start = start_of_next(static_cast<PageId>(filling.page));
    const std::size_t bytes = page_bytes(t), room = bytes - std::min(bytes, start);
    const int limit = t.role == TensorRole::kGemmWeight ? round_up(kPanelRows, block) : rows_left;
    const auto blocks = static_cast<int>(
        std::min<std::size_t>(room / bytes_of(t, block, format_), ceil_div(std::min(limit, rows_left), block)));
    return std::min(blocks * block, rows_left);
  }

  PanelPlace append(const ShardTensor& t, int row, int rows, PageId page) {
    const PanelPlace place{
        .use = visit(page), .page = page, .offset = start_of_next(page), .row_begin = row, .rows = rows};
    layout_.used_bytes[page] = place.offset + bytes_of(t, rows, format_);
    return place;
  }

  std::size_t start_of_next(PageId page) const { return round_up(layout_.used_bytes[page], kAlignment); }

  // The use of a page that goes on, or a new one.
  PageUse visit(PageId page) {
    if (layout_.uses.empty() || layout_.uses.back() != page) layout_.uses.push_back(page);
    return static_cast<PageUse>(layout_.uses.size() - 1);
  }

  std::size_t page_bytes(const ShardTensor& t) const {
    return t.of_adapter() && layout_.slot_bytes > 0 ? layout_.slot_bytes : layout_.page_bytes;
  }

  static bool embeds(const ShardTensor& tensor) { return tensor.name.starts_with("embedding."); }

  void begin_page(Filling& filling) {
    filling.page = layout_.pages();
    if (&filling == &adapter_) layout_.adapter_pages.push_back(static_cast<PageId>(filling.page));
    layout_.used_bytes.push_back(0);
  }

  // The same panels, visited again.
  void revisit(const TensorLayout& earlier) {
    TensorLayout again = earlier;
    for (PanelPlace& panel : again.panels) panel.use = visit(panel.page);
    layout_.tensors.push_back(std::move(again));
  }

  // As many panels a group as lie in kGroupPages pages.
  static std::vector<PanelGroup> group_panels(const std::vector<PanelPlace>& panels) {
    std::vector<PanelGroup> groups;
    for (int i = 0; i < static_cast<int>(panels.size()); ++i) {
      if (groups.empty() || panels[i].use - panels[groups.back().first].use >= ShardLayout::kGroupPages) {
        groups.push_back({.first = i, .count = 0});
      }
      ++groups.back().count;
    }
    return groups;
  }

  // Groups visit uses one by one: what lies before the next group's first use is over.
  void find_ends_of_uses() {
    auto next_begin = static_cast<std::int64_t>(layout_.uses.size());
    for (std::size_t i = layout_.tensors.size(); i-- > 0;) {
      TensorLayout& tensor = layout_.tensors[i];
      for (std::size_t g = tensor.groups.size(); g-- > 0;) {
        tensor.groups[g].release_through = next_begin - 1;
        next_begin = tensor.panels[tensor.groups[g].first].use;
      }
    }
  }

  // Before an operation begins, everything before its first use is over, and nothing more until it is enqueued.
  void find_releases() {
    std::int64_t begin = 0;  // of the operation
    for (std::size_t i = 0; i < layout_.tensors.size(); ++i) {
      const std::vector<PanelPlace>& panels = layout_.tensors[i].panels;
      for (const PanelGroup& group : layout_.tensors[i].groups) {
        if (i == 0 || !shares_operation_with_next(i - 1)) begin = panels[group.first].use;
        layout_.over_before.resize(panels[group.first + group.count - 1].use + 1, begin - 1);
      }
    }
  }

  void number_tensors() {
    int index = 0, place = 0;
    for (const ShardTensor& tensor : layout_.plan.tensors) {
      layout_.numbers.emplace(tensor.name, ShardLayout::TensorNumber{index++, place});
      place += tensor.of_adapter() ? 0 : 1;
    }
  }

  // A norm reads its weight and its bias in one operation; every other tensor has operations of its own.
  bool shares_operation_with_next(std::size_t i) const {
    const std::vector<ShardTensor>& tensors = layout_.plan.tensors;
    const std::string& name = tensors[i].name;
    return tensors[i].role == TensorRole::kVector && name.ends_with(".weight") && i + 1 < tensors.size() &&
           tensors[i + 1].name == name.substr(0, name.size() - std::string_view("weight").size()) + "bias";
  }

  [[noreturn]] void refuse(const ShardTensor& t, int block) const {
    throw ConfigError(fmt::format("a page of {} bytes cannot hold {} rows of {} ({} bytes); use a larger --page-size",
                                  page_bytes(t), block, t.name, bytes_of(t, block, format_)));
  }

  ShardLayout& layout_;
  const WeightFormat& format_;
  Filling base_, adapter_;
  bool embedding_open_ = false;  // the tensor before is of the embedding
};

}  // namespace

std::size_t ShardLayout::total_used_bytes() const {
  return std::accumulate(used_bytes.begin(), used_bytes.end(), std::size_t{0});
}

std::size_t ShardLayout::total_link_bytes() const {
  return link_bytes.empty() ? total_used_bytes()
                            : std::accumulate(link_bytes.begin(), link_bytes.end(), std::size_t{0});
}

std::size_t ShardLayout::waste_bytes() const { return frame_bytes() - total_used_bytes(); }

ShardLayout ShardLayout::make(ShardPlan plan, const WeightFormat& format, const WeightTypes& types,
                              std::size_t page_bytes, std::size_t slot_bytes) {
  set_types(plan, format, types);
  ShardLayout layout{.plan = std::move(plan),
                     .types = types,
                     .cache_dtype = cache_dtype_of(format, types),
                     .page_bytes = page_bytes,
                     .slot_bytes = slot_bytes,
                     .tensors = {},
                     .used_bytes = {},
                     .link_bytes = {},
                     .contents = {},
                     .uses = {},
                     .over_before = {}};
  Layouter(layout, format).run();
  return layout;
}

std::size_t ShardLayout::largest_block_bytes(ShardPlan plan, const WeightFormat& format, const WeightTypes& types) {
  set_types(plan, format, types);
  std::size_t largest = 0;
  for (const ShardTensor& t : plan.tensors) {
    largest = std::max(largest, bytes_of(t, row_block(t, format), format));
  }
  return largest;
}

std::size_t ShardLayout::common_block_bytes(ShardPlan plan, const WeightFormat& format, const WeightTypes& types) {
  if (!format.joins_pages()) return 1;
  set_types(plan, format, types);
  std::size_t common = 1;
  for (const ShardTensor& t : plan.tensors) {
    if (t.role == TensorRole::kGemmWeight) common = common_block(common, bytes_of(t, row_block(t, format), format));
  }
  return common;
}

std::size_t common_block(std::size_t a, std::size_t b) {
  constexpr std::size_t kLargest = std::size_t{8} << 20;
  const std::size_t common = std::lcm(a, b);  // 0 where one of them is
  return common <= kLargest ? common : 0;
}

std::size_t default_page_bytes(std::size_t device_default, std::size_t largest_block, std::size_t common_block) {
  constexpr std::size_t kAlignment = 4096;  // of what is read past the file cache
  const std::size_t multiple = std::lcm(common_block, kAlignment), least = std::max(device_default, 16 * largest_block);
  if (common_block <= 1 || least < 2 * multiple) return round_up(least, kAlignment);
  return least / multiple * multiple;
}

}  // namespace computron
