#include <algorithm>
#include <utility>

#include "computron/model/adapter.h"
#include "computron/model/layers.h"

namespace computron {

LowRank::LowRank(const ShardLayout& layout, const std::string& weight, const std::string& k_slice) {
  if (layout.plan.config.adapter_ranks.empty()) return;
  const auto& tensors = layout.plan.tensors;
  const auto found = std::ranges::find(tensors, weight + k_slice, &ShardTensor::name);
  if (found == tensors.end()) return;
  for (const TensorPart& part : found->parts) {
    const LoraNames names(part.source);
    TensorRef a = TensorRef::find(layout, names.a + k_slice);
    if (!a.present()) continue;
    modules_.push_back({std::move(a), TensorRef::find(layout, names.scale + k_slice),
                        TensorRef::find(layout, names.b + k_slice), part.transposed ? 0 : part.row});
  }
}

void LowRank::add(Pass& pass, Activations x, Activations out) {
  for (Module& module : modules_) {
    const Activations sums = pass.work.low_rank(x.rows, module.a.columns());  // [M, rank]
    pass.ops.zero(pass.stream, sums);
    module.a.for_each_table(pass.pages,
                            [&](const Table& part) { pass.ops.add_low_rank_in(pass.stream, x, part, sums); });
    pass.ops.scale_by(pass.stream, module.scale.vector(pass.pages), sums);
    module.scale.release(pass.pages);
    module.b.for_each_table(
        pass.pages, [&](const Table& part) { pass.ops.add_low_rank_out(pass.stream, sums, part, module.column, out); });
  }
}

}  // namespace computron
