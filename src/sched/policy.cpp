#include "computron/sched/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace computron {
namespace {

class FifoPolicy : public Policy {
 public:
  ModelId next_model(std::span<const ModelView> models) const override {
    const auto older = [](const ModelView& a, const ModelView& b) {
      return std::tuple(a.waiting == 0, a.oldest_arrival_s, a.oldest_request) <
             std::tuple(b.waiting == 0, b.oldest_arrival_s, b.oldest_request);
    };
    return std::min_element(models.begin(), models.end(), older)->model;
  }

  std::vector<ModelId> eviction_order(std::span<const ModelView> models, ModelId running) const override {
    std::vector<ModelView> others;
    std::copy_if(models.begin(), models.end(), std::back_inserter(others),
                 [running](const ModelView& view) { return view.model != running; });
    std::stable_sort(others.begin(), others.end(),
                     [](const ModelView& a, const ModelView& b) { return a.last_used < b.last_used; });
    std::vector<ModelId> order;
    for (const ModelView& view : others) order.push_back(view.model);
    return order;
  }
};

}  // namespace

std::unique_ptr<Policy> make_fifo_policy() { return std::make_unique<FifoPolicy>(); }

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "fifo") return make_fifo_policy();
  throw Error(ExitCode::kUsage, fmt::format("unknown policy '{}' (known: fifo)", name));
}

}  // namespace computron
