#include "computron/plan/profiled_costs.h"

namespace computron {
namespace {

constexpr int kMostRows = 1 << 30;

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

}  // namespace computron
