#include "computron/model/checkpoint_check.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "computron/base/error.h"
#include "src/model/differences.h"
#include "src/model/join.h"

namespace computron {
namespace {

std::string order_of(bool transposed) { return transposed ? "[in][out]" : "[out][in]"; }

std::optional<std::string> difference(const TensorSpec& wanted, const TensorEntry& stored) {
  if (stored.shape != wanted.shape) {
    return fmt::format("{}: shape [{}] expected, [{}] stored", wanted.name, join(wanted.shape, ", "),
                       join(stored.shape, ", "));
  }
  if (stored.transposed != wanted.transposed) {
    return fmt::format("{}: {} expected, {} stored", wanted.name, order_of(wanted.transposed),
                       order_of(stored.transposed));
  }
  return std::nullopt;
}

class TensorComparison {
 public:
  // `wanted` against what is stored under its name.
  void compare(const TensorSpec& wanted, const CheckpointIndex& index) {
    const auto found = index.tensors.find(wanted.name);
    if (found == index.tensors.end()) return differences.add(wanted.name + ": missing");
    if (auto text = difference(wanted, found->second)) return differences.add(std::move(*text));
    if (wanted.role == TensorRole::kGemmWeight) compare_dtype(found->second);
  }

  Differences differences;

 private:
  // All weights of matrix products have the dtype of the first.
  void compare_dtype(const TensorEntry& stored) {
    if (first_ == nullptr) first_ = &stored;
    if (stored.dtype == first_->dtype) return;
    differences.add(fmt::format("{}: {} stored, but {} is {}", stored.name, name_of(stored.dtype), first_->name,
                                name_of(first_->dtype)));
  }

  const TensorEntry* first_ = nullptr;
};

}  // namespace

void check_tensors(const ModelConfig& config, const CheckpointIndex& index) {
  TensorComparison comparison;
  Differences& differences = comparison.differences;
  std::set<std::string> known;
  if (index.architecture != config.architecture) {
    differences.add(fmt::format("architecture '{}' expected, '{}' stored", config.architecture, index.architecture));
  }
  for (const TensorSpec& spec : tensor_specs(config)) {
    comparison.compare(spec, index);
    known.insert(spec.name);
  }
  for (const auto& [name, entry] : index.tensors) {
    if (!known.contains(name)) differences.add(fmt::format("{}: stored, but not part of the model", name));
  }
  differences.throw_if_any(index.path);
}

DType stored_weight_dtype(const ModelConfig& config, const CheckpointIndex& index) {
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (spec.role == TensorRole::kGemmWeight) return index.tensors.at(spec.name).dtype;
  }
  throw ConfigError(fmt::format("{}: no weights", index.path));
}

}  // namespace computron
