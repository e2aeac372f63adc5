#include "computron/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/size.h"

namespace computron {
namespace {

using Images = std::vector<std::vector<const Image*>>;

// Bytes fetched for each model that no turn has been charged with yet, by stage.
class Fetched {
 public:
  Fetched(const Images& images, int tp) : images_(images), tp_(tp) {
    for (const auto& stages : images) pending_.emplace_back(stages.size(), 0);
  }
  void add(const Step& step) {
    for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
      for (const Fetch& fetch : step.stages[stage].fetches) {
        const std::size_t bytes = images_[fetch.model][stage]->used_bytes[fetch.page];
        pending_[fetch.model][stage] += bytes;
        all_ += bytes * static_cast<std::size_t>(tp_);
      }
    }
  }
  std::size_t take(ModelId model) {
    const std::size_t bytes = *std::max_element(pending_[model].begin(), pending_[model].end());
    std::fill(pending_[model].begin(), pending_[model].end(), 0);
    return bytes;
  }
  std::size_t all() const { return all_; }

 private:
  const Images& images_;
  int tp_;
  std::size_t all_ = 0;
  std::vector<std::vector<std::size_t>> pending_;  // [model][stage]
};

std::string line(const PlannedTurn& turn, const std::string& name) {
  return fmt::format("{:>10.3f}{:>10.3f}  {:<24}{:>8}{:>10}{:>14}{:>12.3f}\n", turn.begin_s, turn.end_s, name,
                     turn.passes, turn.rows, format_size(turn.fetched_bytes), turn.exposed_s);
}

}  // namespace

Plan make_plan(const VirtualRun& run, const VirtualMesh& mesh, const Images& images, int tp) {
  Plan plan{.turns = {}, .end_s = run.end_s, .swaps = run.swaps, .exposed_s = run.exposed_s,
            .requests = run.completions.size()};
  Fetched fetched(images, tp);
  for (const VirtualRun::SentStep& sent : run.steps) {
    const Step& step = sent.planned.step;
    fetched.add(step);
    if (step.chunks.empty()) continue;
    if (plan.turns.empty() || plan.turns.back().model != step.model) {
      plan.turns.push_back({.model = step.model, .begin_s = sent.execution.begin_s});
    }
    PlannedTurn& turn = plan.turns.back();
    turn.end_s = sent.execution.reported_s;
    turn.passes += 1;
    turn.rows += step.rows();
    turn.exposed_s += sent.execution.exposed_s;
    turn.fetched_bytes += fetched.take(step.model);
  }
  plan.fetched_bytes = fetched.all();
  plan.refused = static_cast<std::size_t>(std::count_if(
      run.completions.begin(), run.completions.end(), [](const Completion& c) { return !c.error_code.empty(); }));
  for (std::size_t stage = 0; stage < images.front().size(); ++stage) {
    plan.link_busy_s = std::max(plan.link_busy_s, mesh.busy_s(stage));
  }
  return plan;
}

std::string format_plan(const Plan& plan, const std::vector<std::string>& names, const CostOptions& costs,
                        std::size_t max_turns) {
  std::string text = fmt::format("{:>10}{:>10}  {:<24}{:>8}{:>10}{:>14}{:>12}\n", "from s", "to s", "model", "passes",
                                 "tokens", "fetched/rank", "waiting s");
  for (std::size_t i = 0; i < std::min(plan.turns.size(), max_turns); ++i) {
    text += line(plan.turns[i], names[plan.turns[i].model]);
  }
  if (plan.turns.size() > max_turns) text += fmt::format("... and {} turns more\n", plan.turns.size() - max_turns);
  text += fmt::format(
      "{} requests ({} refused) in {:.3f} s: {} swaps move {}; links busy {:.3f} s, compute waits {:.3f} s for pages\n",
      plan.requests, plan.refused, plan.end_s, plan.swaps, format_size(plan.fetched_bytes), plan.link_busy_s,
      plan.exposed_s);
  text += fmt::format("at {:.2f} GB/s a link, {:.2f} GB/s of weights and {:.1f} GFLOP/s a rank\n",
                      1e-9 * costs.link_bytes_per_s, 1e-9 * costs.memory_bytes_per_s, 1e-9 * costs.flops_per_s);
  return text;
}

}  // namespace computron
