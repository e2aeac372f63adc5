#include "computron/model/weight_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "computron/model/checkpoint_check.h"

namespace computron {
namespace {

// Of the columns that each rank takes of a part that is cut along them: where they begin as stored, and in the shard.
int common_group(const TensorPart& part, int group, int tp) {
  for (int t = 0; t < tp; ++t) {
    for (const PartSlice& slice : part.slices(t)) {
      group = std::gcd(group, static_cast<int>(slice.begin));
      group = std::gcd(group, static_cast<int>(slice.row));
    }
  }
  return group;
}

std::string cut_of(const TensorPart& part, int tp) {
  return part.slices_per_rank > 1 ? fmt::format("--reproducible at tp {}", tp) : fmt::format("tp {}", tp);
}

}  // namespace

WeightTypes::WeightTypes(const ModelConfig& config, const CheckpointIndex& index) {
  std::map<std::string, std::pair<std::size_t, WeightType>> values;  // how many, by what the type is called
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (spec.role != TensorRole::kGemmWeight) continue;
    const WeightType type = by_name_[spec.name] = stored_weight_type(index, spec.name);
    auto& [count, named] = values[name_of(type)];
    count += index.tensors.at(spec.name).bytes * 8 / bits_of(type.codes);
    named = type;
  }
  std::size_t most = 0;
  for (const auto& [name, of_type] : values) {
    if (of_type.first <= most) continue;
    std::tie(most, most_) = of_type;
  }
}

WeightTypes WeightTypes::kept_by(const Ops& ops) const {
  WeightTypes types = ops.weight_type(most_);
  for (const auto& [name, stored] : by_name_) types.by_name_[name] = ops.weight_type(stored);
  return types;
}

const WeightType& WeightTypes::of(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? most_ : found->second;
}

std::vector<WeightType> WeightTypes::all() const {
  std::vector<WeightType> types = {most_};
  for (const auto& [name, type] : by_name_) {
    if (std::ranges::find(types, type) == types.end()) types.push_back(type);
  }
  return types;
}

WeightType WeightTypes::of(const ShardTensor& tensor, const ShardPlan& plan) const {
  ensure(!tensor.parts.empty(), "a weight without parts has no type");
  const WeightType stored = of(tensor.parts.front().source);
  WeightType type = stored;
  for (const TensorPart& part : tensor.parts) {
    ensure(of(part.source) == stored, "the parts of a weight have several types");
    if (!stored.quantised() || stored.group == WeightType::kWholeRow || !part.transposed) continue;
    type.group = common_group(part, type.group, plan.mesh.tp);
    if (type.group % WeightType::kSmallestGroup == 0) continue;
    throw ConfigError(fmt::format("{}: {} cuts {} within groups, into {} values of one, which is no multiple of {}",
                                  part.source, cut_of(part, plan.mesh.tp), name_of(stored), type.group,
                                  WeightType::kSmallestGroup));
  }
  return type;
}

}  // namespace computron
