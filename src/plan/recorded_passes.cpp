#include "src/plan/recorded_passes.h"

#include <bit>

namespace computron {

RecordedPasses::RecordedPasses(const std::vector<Record::Step>& steps, const std::function<double(double)>& stage_s,
                               CostModel costs)
    : costs_(std::move(costs)) {
  for (const Record::Step& step : steps) {
    if (step.sent.rows == 0) continue;
    Pass& pass = sizes_[{step.sent.model, std::bit_width(step.sent.rows)}].passes.emplace_back(
        Pass{static_cast<int>(step.sent.rows), {}});
    for (const RecordedReport::Stage& stage : step.report.stages)
      pass.stage_s.push_back(stage_s(stage.times.compute_s));
  }
  for (const auto& [what, size] : sizes_) {
    const auto count = static_cast<double>(size.passes.size());
    for (std::size_t stage = 0; stage < size.passes.front().stage_s.size(); ++stage) {
      double rows = 0, seconds = 0;
      for (const Pass& pass : size.passes) {
        rows += pass.rows;
        seconds += pass.stage_s[stage];
      }
      costs_.observe_pass(what.first, stage, static_cast<int>(rows / count), seconds / count);
    }
  }
}

std::vector<double> RecordedPasses::next_s(const Step& step) {
  const auto rows = static_cast<unsigned>(step.rows());
  const auto found = sizes_.find({step.model, std::bit_width(rows)});
  if (found == sizes_.end()) return {};
  Size& size = found->second;
  const Pass& pass = size.passes[size.next++ % size.passes.size()];
  std::vector<double> seconds = pass.stage_s;
  for (std::size_t stage = 0; stage < seconds.size(); ++stage) {
    seconds[stage] *=
        costs_.stage_pass_s(step.model, stage, step.rows()) / costs_.stage_pass_s(step.model, stage, pass.rows);
  }
  return seconds;
}

}  // namespace computron
