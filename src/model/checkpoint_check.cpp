#include "computron/model/checkpoint_check.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "computron/base/error.h"
#include "join.h"

namespace computron {
namespace {

constexpr std::size_t kListed = 10;

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

class Differences {
 public:
  void add(std::string text) {
    if (++count_ <= kListed) listed_.push_back(std::move(text));
  }

  // `wanted` against what is stored under its name.
  void compare(const TensorSpec& wanted, const CheckpointIndex& index) {
    const auto found = index.tensors.find(wanted.name);
    if (found == index.tensors.end()) return add(wanted.name + ": missing");
    if (auto text = difference(wanted, found->second)) return add(std::move(*text));
    if (wanted.role == TensorRole::kGemmWeight) compare_dtype(found->second);
  }

  void throw_if_any(const std::string& path) const {
    if (count_ == 0) return;
    const std::string more = count_ > kListed ? fmt::format("; and {} more", count_ - kListed) : "";
    throw ConfigError(fmt::format("{}: {} {} from its configuration: {}{}", path, count_,
                                  count_ == 1 ? "difference" : "differences", join(listed_, "; "), more));
  }

 private:
  // All weights of matrix products have the dtype of the first.
  void compare_dtype(const TensorEntry& stored) {
    if (first_ == nullptr) first_ = &stored;
    if (stored.dtype == first_->dtype) return;
    add(fmt::format("{}: {} stored, but {} is {}", stored.name, name_of(stored.dtype), first_->name,
                    name_of(first_->dtype)));
  }

  std::size_t count_ = 0;
  std::vector<std::string> listed_;
  const TensorEntry* first_ = nullptr;
};

}  // namespace

void check_tensors(const ModelConfig& config, const CheckpointIndex& index) {
  Differences differences;
  std::set<std::string> known;
  if (index.architecture != config.architecture) {
    differences.add(fmt::format("architecture '{}' expected, '{}' stored", config.architecture, index.architecture));
  }
  for (const TensorSpec& spec : tensor_specs(config)) {
    differences.compare(spec, index);
    known.insert(spec.name);
  }
  for (const auto& [name, entry] : index.tensors) {
    if (!known.contains(name)) differences.add(fmt::format("{}: stored, but not part of the model", name));
  }
  differences.throw_if_any(index.path);
}

}  // namespace computron
