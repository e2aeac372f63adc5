#include <algorithm>
#include <utility>

#include "computron/model/adapter.h"
#include "computron/model/layers.h"

namespace computron {

LowRank::LowRank(const ShardLayout& layout, const std::string& weight, const std::string& k_slice) {
  const auto [index, place] = layout.number_of(weight + k_slice);
  place_ = place;
  if (index < 0 || layout.plan.config.adapter_ranks.empty()) return;
  for (const TensorPart& part : layout.plan.tensors[static_cast<std::size_t>(index)].parts) {
    const LoraNames names(part.source);
    TensorRef a = TensorRef::find(layout, names.a + k_slice);
    if (!a.present()) continue;
    modules_.push_back({std::move(a), TensorRef::find(layout, names.scale + k_slice),
                        TensorRef::find(layout, names.b + k_slice), part.transposed ? 0 : part.row});
  }
}

bool LowRank::changes(const Pass& pass) const {
  return present() || std::ranges::any_of(pass.riders, [this](const Rider& rider) {
           return rider.adapter != nullptr && rider.adapter->at(place_) != nullptr;
         });
}

// What is multiplied in one operation for all rows of the batch.
struct LowRank::Products {
  std::vector<LowRankPart> in, out;
  std::vector<LowRankScale> scales;
  std::size_t sums = 0;  // floats of the workspace that they have
};

void LowRank::add(Pass& pass, Activations x, Activations out) {
  if (pass.riders.empty() && pass.pages.group_by_group()) return add_by_groups(pass, x, out);
  ensure(pass.riders.empty() || (x.rows == pass.batch.rows() && !(present() && pass.pages.group_by_group())),
         "a product of other rows than the batch's, or with pages that rotate, has riders");
  Products products;
  collect(pass, pass.pages, 0, pass.riders.empty() ? x.rows : pass.riders.front().row, products);
  for (const Rider& rider : pass.riders) {
    LowRank* const low_rank = rider.adapter == nullptr ? nullptr : rider.adapter->at(place_);
    if (low_rank != nullptr) low_rank->collect(pass, *rider.pages, rider.row, rider.rows, products);
  }
  pass.ops.add_low_rank_in(pass.stream, x, std::move(products.in));
  pass.ops.scale_low_rank(pass.stream, std::move(products.scales));
  pass.ops.add_low_rank_out(pass.stream, std::move(products.out), out);
  release(pass.pages);
}

void LowRank::collect(Pass& pass, PageSource& pages, int row, int rows, Products& products) {
  for (Module& module : modules_) {
    const Activations sums = pass.work.low_rank(products.sums, rows, module.a.columns());
    products.sums += sums.bytes() / sizeof(float);
    products.in.push_back({.table = module.a.table(pages), .row = row, .rows = rows, .sums = sums});
    products.scales.push_back({module.scale.vector(pages), sums});
    products.out.push_back(
        {.table = module.b.table(pages), .row = row, .rows = rows, .sums = sums, .column = module.column});
  }
}

// A rider's stay until the pass's end.
void LowRank::release(PageSource& pages) {
  for (const Module& module : modules_) {
    module.a.release(pages);
    module.scale.release(pages);
    module.b.release(pages);
  }
}

void LowRank::add_by_groups(Pass& pass, Activations x, Activations out) {
  for (Module& module : modules_) {
    const Activations sums = pass.work.low_rank(0, x.rows, module.a.columns());
    LowRankPart part{.table = {}, .rows = x.rows, .sums = sums, .column = module.column};
    module.a.for_each_table(pass.pages, [&](const Table& table) {
      part.table = table;
      pass.ops.add_low_rank_in(pass.stream, x, {part});
      part.continues = true;
    });
    pass.ops.scale_low_rank(pass.stream, {{module.scale.vector(pass.pages), sums}});
    module.scale.release(pass.pages);
    module.b.for_each_table(pass.pages, [&](const Table& table) {
      part.table = table;
      pass.ops.add_low_rank_out(pass.stream, {part}, out);
    });
  }
}

LowRanks::LowRanks(const ShardLayout& layout) {
  if (layout.plan.config.adapter_ranks.empty()) return;
  constexpr std::string_view kWeight = ".weight";
  for (const ShardTensor& tensor : layout.plan.tensors) {
    if (tensor.of_adapter()) continue;
    const std::size_t at = tensor.role == TensorRole::kGemmWeight ? tensor.name.find(kWeight) : std::string::npos;
    const std::size_t end = at == std::string::npos ? at : at + kWeight.size();
    low_ranks_.push_back(
        end == std::string::npos ? LowRank() : LowRank(layout, tensor.name.substr(0, end), tensor.name.substr(end)));
    any_ |= low_ranks_.back().present();
  }
}

LowRank* LowRanks::at(int place) {
  const auto index = static_cast<std::size_t>(place);
  return place >= 0 && index < low_ranks_.size() && low_ranks_[index].present() ? &low_ranks_[index] : nullptr;
}

}  // namespace computron
