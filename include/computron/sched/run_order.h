// The models that have work, in the order in which they should run, and the place of each.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "computron/base/types.h"

namespace computron {

class RunOrder {
 public:
  static constexpr std::size_t kNotInIt = std::numeric_limits<std::size_t>::max();

  // Of `models` models; empty.
  explicit RunOrder(std::size_t models) : place_(models, kNotInIt) {}

  void clear() {
    for (const ModelId model : order_) place_[model] = kNotInIt;
    order_.clear();
  }
  // Behind all others. It is not in the order yet.
  void push_back(ModelId model) {
    place_[model] = order_.size();
    order_.push_back(model);
  }

  bool empty() const { return order_.empty(); }
  std::size_t size() const { return order_.size(); }
  // Requires one.
  ModelId front() const { return order_.front(); }
  std::span<const ModelId> models() const { return order_; }
  // kNotInIt of a model without work.
  std::size_t place(ModelId model) const { return place_[model]; }

 private:
  std::vector<ModelId> order_;
  std::vector<std::size_t> place_;  // [model]
};

}  // namespace computron
