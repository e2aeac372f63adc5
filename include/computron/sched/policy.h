// Which model runs next, and whose pages go. Pure functions of what they are shown.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "computron/base/types.h"

namespace computron {

// What a policy knows of a model at a decision.
struct ModelView {
  ModelId model = 0;
  std::size_t waiting = 0;         // requests
  double oldest_arrival_s = 0;     // of the waiting ones
  std::uint64_t oldest_request = 0;  // tells equal arrivals apart
  StepId last_used = 0;            // last step that ran it; 0: never
  int missing_pages = 0;           // summed over stages
};

class Policy {
 public:
  virtual ~Policy() = default;
  // The model whose turn it is, among those with waiting requests. At least one has.
  virtual ModelId next_model(std::span<const ModelView> models) const = 0;
  // All models but `running`, the first to lose pages first.
  virtual std::vector<ModelId> eviction_order(std::span<const ModelView> models, ModelId running) const = 0;
};

// Computron's own rule, the baseline: the model with the oldest waiting request runs; the least recently used loses.
std::unique_ptr<Policy> make_fifo_policy();
// "fifo". Error{kUsage} naming `name` and the known ones.
std::unique_ptr<Policy> make_policy(std::string_view name);

}  // namespace computron
