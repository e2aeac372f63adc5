// A set of models that is walked often and changed in constant time. In no order.
#pragma once

#include <span>
#include <vector>

#include "computron/base/types.h"

namespace computron {

class ModelList {
 public:
  // Of `models` models; empty.
  explicit ModelList(std::size_t models) : place_(models, kAbsent) {}

  bool contains(ModelId model) const { return place_[model] != kAbsent; }
  bool empty() const { return models_.empty(); }
  std::size_t size() const { return models_.size(); }
  std::span<const ModelId> models() const { return models_; }

  void insert(ModelId model) {
    if (contains(model)) return;
    place_[model] = models_.size();
    models_.push_back(model);
  }
  void erase(ModelId model) {
    if (!contains(model)) return;
    models_[place_[model]] = models_.back();
    place_[models_.back()] = place_[model];
    models_.pop_back();
    place_[model] = kAbsent;
  }
  // In it exactly if `present`.
  void set(ModelId model, bool present) { present ? insert(model) : erase(model); }
  void clear() {
    for (const ModelId model : models_) place_[model] = kAbsent;
    models_.clear();
  }

 private:
  static constexpr std::size_t kAbsent = static_cast<std::size_t>(-1);
  std::vector<ModelId> models_;
  std::vector<std::size_t> place_;  // [model] in models_
};

}  // namespace computron
