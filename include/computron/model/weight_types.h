// The types of a model's GEMM weights, by canonical name, and how a rank's part of one is held.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/model/shard_plan.h"
#include "computron/ops/ops.h"

namespace computron {

class WeightTypes {
 public:
  // All weights have one type.
  WeightTypes(const WeightType& all) : most_(all) {}        // NOLINT: such a model's types are that type
  WeightTypes(DType all) : WeightTypes(WeightType(all)) {}  // NOLINT
  // As a checkpoint that has passed check_tensors() stores them.
  WeightTypes(const ModelConfig& config, const CheckpointIndex& index);

  // As a device keeps them (Ops::weight_type).
  WeightTypes kept_by(const Ops& ops) const;

  const WeightType& of(const std::string& name) const;
  // A rank's tensor of `plan`. Where tp cuts within groups it has shorter ones, which begin at the same values on every
  // rank. ConfigError naming the tensor where these would be no multiple of WeightType::kSmallestGroup.
  WeightType of(const ShardTensor& tensor, const ShardPlan& plan) const;
  // Those that there are, each once.
  std::vector<WeightType> all() const;
  // That most of the values have: what reports say of the model.
  const WeightType& most() const { return most_; }

 private:
  std::map<std::string, WeightType> by_name_;
  WeightType most_;  // and that of those without a name here
};

}  // namespace computron
