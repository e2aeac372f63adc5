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
  const auto adapts = [this](const Rider& rider) {
    return rider.adapter != nullptr && rider.adapter->at(place_) != nullptr;
  };
  return present() || std::ranges::any_of(pass.riders, adapts);
}

void LowRank::add(Pass& pass, Activations x, Activations out) {
  if (pass.riders.empty()) return add_own(pass, pass.pages, x, out);
  ensure(x.rows == pass.batch.rows(), "a product of other rows than the batch's has riders");
  const int own = pass.riders.front().row;
  if (present()) add_own(pass, pass.pages, x.row_range(0, own), out.row_range(0, own));
  for (const Rider& rider : pass.riders) {
    LowRank* const low_rank = rider.adapter == nullptr ? nullptr : rider.adapter->at(place_);
    if (low_rank == nullptr) continue;
    low_rank->add_own(pass, *rider.pages, x.row_range(rider.row, rider.rows), out.row_range(rider.row, rider.rows));
  }
}

void LowRank::add_own(Pass& pass, PageSource& pages, Activations x, Activations out) {
  for (Module& module : modules_) {
    const Activations sums = pass.work.low_rank(x.rows, module.a.columns());  // [M, rank]
    pass.ops.zero(pass.stream, sums);
    module.a.for_each_table(pages, [&](const Table& part) { pass.ops.add_low_rank_in(pass.stream, x, part, sums); });
    pass.ops.scale_by(pass.stream, module.scale.vector(pages), sums);
    module.scale.release(pages);
    module.b.for_each_table(
        pages, [&](const Table& part) { pass.ops.add_low_rank_out(pass.stream, sums, part, module.column, out); });
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
