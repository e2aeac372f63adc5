#include "computron/model/checkpoint_check.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "computron/base/error.h"
#include "computron/base/join.h"
#include "computron/checkpoint/differences.h"
#include "computron/model/adapter.h"

namespace computron {
namespace {

std::string order_of(bool transposed) { return transposed ? "[in][out]" : "[out][in]"; }

std::optional<std::string> difference(const std::string& name, const std::vector<std::size_t>& shape, bool transposed,
                                      const TensorEntry& stored) {
  if (stored.shape != shape) {
    return fmt::format("{}: shape [{}] expected, [{}] stored", name, join(shape, ", "), join(stored.shape, ", "));
  }
  if (stored.transposed != transposed) {
    return fmt::format("{}: {} expected, {} stored", name, order_of(transposed), order_of(stored.transposed));
  }
  return std::nullopt;
}

// The name of the tensor that a weight is a part of where it is multiplied: as ShardPlan fuses them.
std::string fused_name(const std::string& weight) {
  for (const char* part : {".attention.query.", ".attention.key.", ".attention.value.", ".gate.", ".up."}) {
    const std::size_t at = weight.find(part);
    if (at == std::string::npos) continue;
    const bool gate_up = std::string_view(part) == ".gate." || std::string_view(part) == ".up.";
    return weight.substr(0, at) + (gate_up ? ".gate_up" : ".attention.qkv");
  }
  return weight;
}

class TensorComparison {
 public:
  explicit TensorComparison(const CheckpointIndex& index) : index_(index) {}

  // `wanted` against what is stored under its name.
  void compare(const TensorSpec& wanted) {
    known_.insert(wanted.name);
    const auto found = index_.tensors.find(wanted.name);
    if (found == index_.tensors.end()) return differences.add(wanted.name + ": missing");
    const TensorEntry& stored = found->second;
    if (is_code(stored.dtype)) known_.insert(scales_name(wanted.name));
    if (auto text = difference(wanted.name, wanted.shape, wanted.transposed, stored)) {
      return differences.add(std::move(*text));
    }
    wanted.role == TensorRole::kGemmWeight ? compare_weight(stored) : compare_values(stored);
  }

  void compare_rest() {
    for (const auto& [name, entry] : index_.tensors) {
      if (!known_.contains(name)) differences.add(fmt::format("{}: stored, but not part of the model", name));
    }
  }

  Differences differences;

 private:
  void compare_values(const TensorEntry& stored) {
    if (is_plain(stored.dtype)) return;
    differences.add(
        fmt::format("{}: {} stored, but it is no weight of a matrix product", stored.name, name_of(stored.dtype)));
  }

  void compare_weight(const TensorEntry& stored) {
    if (is_scale(stored.dtype) && !is_plain(stored.dtype)) {
      return differences.add(
          fmt::format("{}: {} stored, the type of scales alone", stored.name, name_of(stored.dtype)));
    }
    if (is_plain(stored.dtype)) {
      compare_dtype(stored);
    } else if (!compare_scales(stored)) {
      return;
    }
    compare_fused(stored);
  }

  // All plain weights of matrix products have the dtype of the first; what an adapter has whole has its own.
  void compare_dtype(const TensorEntry& stored) {
    if (stored.in_second_file) return;
    if (first_ == nullptr) first_ = &stored;
    if (stored.dtype == first_->dtype) return;
    differences.add(fmt::format("{}: {} stored, but {} is {}", stored.name, name_of(stored.dtype), first_->name,
                                name_of(first_->dtype)));
  }

  // Whether a quantised weight has its scales.
  bool compare_scales(const TensorEntry& codes) {
    const std::string name = scales_name(codes.name);
    const auto found = index_.tensors.find(name);
    if (found == index_.tensors.end()) {
      differences.add(fmt::format("{}: missing, {} is {}", name, codes.name, name_of(codes.dtype)));
      return false;
    }
    const TensorEntry& scales = found->second;
    const std::vector<std::size_t> shape = scales_shape(codes.shape, codes.transposed, codes.group);
    if (auto text = difference(name, shape, codes.transposed, scales)) {
      differences.add(std::move(*text));
      return false;
    }
    if (is_scale(scales.dtype)) return true;
    differences.add(fmt::format("{}: {} stored, scales are f32, f16, bf16, e8m0 or e4m3", name, name_of(scales.dtype)));
    return false;
  }

  // What is multiplied as one is of one type.
  void compare_fused(const TensorEntry& stored) {
    const TensorEntry& other = *fused_.emplace(fused_name(stored.name), &stored).first->second;
    const bool in_one_file = !stored.in_second_file && !other.in_second_file;
    const bool compared = in_one_file && is_plain(stored.dtype) && is_plain(other.dtype);  // with the first of all
    if (compared) return;
    const WeightType type = stored_weight_type(index_, stored.name);
    const WeightType of_other = stored_weight_type(index_, other.name);
    if (type == of_other) return;
    differences.add(fmt::format("{}: {} stored, but {}, with which it is multiplied, is {}", stored.name, text_of(type),
                                other.name, text_of(of_other)));
  }

  static std::string text_of(const WeightType& type) {
    return type.quantised() ? fmt::format("{} with scales of {}", name_of(type), name_of(type.scales)) : name_of(type);
  }

  const CheckpointIndex& index_;
  std::set<std::string> known_;                      // names that the model has
  const TensorEntry* first_ = nullptr;               // plain weight
  std::map<std::string, const TensorEntry*> fused_;  // the first weight of each fused tensor
};

}  // namespace

void check_tensors(const ModelConfig& config, const CheckpointIndex& index) {
  if (index.second_path.empty()) {
    try {
      refuse_adapter_ranks(config);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", index.path, error.what()));
    }
  }
  TensorComparison comparison(index);
  if (index.architecture != config.architecture) {
    comparison.differences.add(
        fmt::format("architecture '{}' expected, '{}' stored", config.architecture, index.architecture));
  }
  for (const TensorSpec& spec : tensor_specs(config)) comparison.compare(spec);
  comparison.compare_rest();
  comparison.differences.throw_if_any(index.path);
}

WeightType stored_weight_type(const CheckpointIndex& index, const std::string& name) {
  const TensorEntry& stored = index.tensors.at(name);
  if (!is_code(stored.dtype)) return stored.dtype;
  return {DType::kBF16, stored.dtype, index.tensors.at(scales_name(name)).dtype, stored.group};
}

}  // namespace computron
