#include "computron/plan/profiled_costs.h"

#include <fmt/format.h>

#include <cmath>

#include "computron/base/size.h"

namespace computron {
namespace {

constexpr int kMostRows = 1 << 30;
constexpr double kRounding = 0.05;  // of bytes

void tell(CostModel& costs, ModelId model, int rows, const std::vector<float>& stage_s) {
  for (std::size_t stage = 0; stage < stage_s.size(); ++stage) {
    costs.observe_pass(model, stage, rows, static_cast<double>(stage_s[stage]));
  }
}

}  // namespace

void seed_costs(CostModel& costs, ModelId model, const ShapeProfile& profile) {
  for (const PassTimes& pass : profile.passes) tell(costs, model, pass.rows, pass.stage_s);
  if (!profile.passes.empty()) return;
  for (const int rows : {1, kMostRows}) tell(costs, model, rows, profile.stage_s);  // and so all between them
}

std::string why_unfit(const ShapeProfile& profile, const std::vector<const ShardLayout*>& stages) {
  if (profile.passes.empty()) return "it has no passes";
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::size_t bytes = stages[stage]->total_used_bytes();
    const auto expected = static_cast<double>(profile.stage_bytes[stage]);
    if (std::abs(static_cast<double>(bytes) - expected) <= kRounding * expected) continue;
    return fmt::format("it is of {} in stage {}, the model has {}", format_size(static_cast<std::size_t>(expected)),
                       stage, format_size(bytes));
  }
  return {};
}

}  // namespace computron
