#include "computron/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "computron/base/size.h"
#include "computron/sched/deadlines.h"

namespace computron {
namespace {

std::string line(const ActivePeriod& period, const std::string& name) {
  return fmt::format("{:>10.3f}{:>10.3f}  {:<24}{:>8}{:>10}{:>14}{:>12.3f}\n", period.begin_s, period.end_s, name,
                     period.passes, period.rows, format_size(period.fetched_bytes), period.exposed_s);
}

}  // namespace

PlanRecorder::PlanRecorder(const std::vector<std::vector<const ShardLayout*>>& layouts, int tp)
    : layouts_(layouts), tp_(tp) {
  for (const auto& stages : layouts) fetched_.emplace_back(stages.size(), 0);
}

void PlanRecorder::add(const VirtualRun::SentStep& sent) {
  const Step& step = sent.planned.step;
  note_fetches(step);
  if (step.chunks.empty()) return;
  if (plan_.periods.empty() || plan_.periods.back().model != step.model) {
    plan_.periods.push_back({.model = step.model, .begin_s = sent.execution.begin_s});
  }
  ActivePeriod& period = plan_.periods.back();
  std::vector<std::size_t>& fetched = fetched_[step.model];
  period.end_s = sent.execution.reported_s;
  period.passes += 1;
  period.rows += step.rows();
  period.exposed_s += sent.execution.exposed_s;
  period.fetched_bytes += *std::max_element(fetched.begin(), fetched.end());
  std::fill(fetched.begin(), fetched.end(), 0);
}

void PlanRecorder::note_fetches(const Step& step) {
  for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
    for (const Fetch& fetch : step.stages[stage].fetches) {
      const ShardLayout& layout = *layouts_[fetch.model][stage];
      const std::size_t bytes = layout.used_bytes[fetch.page];
      fetched_[fetch.model][stage] += bytes;
      plan_.fetched_bytes += bytes * static_cast<std::size_t>(tp_);
      plan_.link_bytes += layout.page_link_bytes(fetch.page) * static_cast<std::size_t>(tp_);
    }
  }
}

Plan PlanRecorder::finish(const VirtualRun& run, std::size_t group, const VirtualMesh& mesh) {
  const VirtualRun::Group& of_group = run.groups.at(group);
  plan_.end_s = of_group.end_s;
  plan_.swaps = of_group.swaps;
  plan_.exposed_s = of_group.exposed_s;
  for (const Completion& completion : run.completions) {
    if (completion.group != group) continue;
    ++plan_.requests;
    plan_.refused += completion.error_code.empty() ? 0 : 1;
  }
  for (std::size_t stage = 0; stage < layouts_.front().size(); ++stage) {
    plan_.link_busy_s = std::max(plan_.link_busy_s, mesh.busy_s(stage));
  }
  return std::move(plan_);
}

namespace {

std::string table(const Plan& plan, const std::vector<std::string>& names, std::size_t max_periods) {
  std::string text = fmt::format("{:>10}{:>10}  {:<24}{:>8}{:>10}{:>14}{:>12}\n", "from s", "to s", "model", "passes",
                                 "tokens", "fetched/rank", "waiting s");
  for (std::size_t i = 0; i < std::min(plan.periods.size(), max_periods); ++i) {
    text += line(plan.periods[i], names[plan.periods[i].model]);
  }
  if (plan.periods.size() > max_periods)
    text += fmt::format("... and {} turns more\n", plan.periods.size() - max_periods);
  return text;
}

// Where that is less: pages are coded.
std::string over_links(const Plan& plan) {
  if (plan.link_bytes == plan.fetched_bytes) return {};
  return fmt::format(", {} over the links", format_size(plan.link_bytes));
}

std::string sums(const Plan& plan) {
  return fmt::format(
      "{} requests ({} refused) in {:.3f} s: {} swaps move {}{}; links busy {:.3f} s, compute waits {:.3f} s for "
      "pages\n",
      plan.requests, plan.refused, plan.end_s, plan.swaps, format_size(plan.fetched_bytes), over_links(plan),
      plan.link_busy_s, plan.exposed_s);
}

std::string attainment_line(const std::string& name, const DeadlineCount& count) {
  const double share = static_cast<double>(count.met) / static_cast<double>(count.total);
  return fmt::format("{:<24}{:>8.1f} % of {:>8} met, {} not served\n", name, 100 * share, count.total, count.unserved);
}

std::string rates(const CostOptions& costs) {
  return fmt::format("at {:.2f} GB/s a link, {:.2f} GB/s of weights and {:.1f} GFLOP/s a rank\n",
                     1e-9 * costs.link_bytes_per_s, 1e-9 * costs.memory_bytes_per_s, 1e-9 * costs.flops_per_s);
}

}  // namespace

std::string format_plan(const Plan& plan, const std::vector<std::string>& names, const CostOptions& costs,
                        std::size_t max_periods) {
  return table(plan, names, max_periods) + sums(plan) + rates(costs);
}

std::string format_group_plan(const std::string& group, const Plan& plan, const std::vector<std::string>& names,
                              std::size_t max_periods) {
  return group + "\n" + table(plan, names, max_periods) + sums(plan);
}

std::string format_deadlines(const VirtualRun& run, const std::vector<std::string>& names) {
  struct Line {
    ModelId model;
    DeadlineCount parts;
  };
  std::map<RequestId, Line> lines;
  for (const Completion& completion : run.completions) {
    if (completion.due_s == kNoDeadline) continue;
    lines.try_emplace(completion.id, Line{completion.model, {}}).first->second.parts.add({&completion, 1});
  }
  std::vector<DeadlineCount> by_model(names.size());
  for (const auto& [id, line] : lines) {
    const bool met = line.parts.met == line.parts.total, unserved = line.parts.unserved > 0;
    by_model.at(line.model) += {.total = 1, .met = met ? 1U : 0U, .unserved = unserved ? 1U : 0U};
  }
  DeadlineCount all;
  std::string text;
  for (std::size_t model = 0; model < names.size(); ++model) {
    if (by_model[model].total > 0) text += attainment_line(names[model], by_model[model]);
    all += by_model[model];
  }
  return text.empty() ? text : "deadlines\n" + text + attainment_line("all models", all);
}

std::string format_sum(const std::vector<Plan>& plans, const CostOptions& costs) {
  Plan all;
  for (const Plan& plan : plans) {
    all.end_s = std::max(all.end_s, plan.end_s);
    all.swaps += plan.swaps;
    all.fetched_bytes += plan.fetched_bytes;
    all.link_bytes += plan.link_bytes;
    all.link_busy_s = std::max(all.link_busy_s, plan.link_busy_s);
    all.exposed_s = std::max(all.exposed_s, plan.exposed_s);
    all.requests += plan.requests;
    all.refused += plan.refused;
  }
  return fmt::format("all {} groups\n", plans.size()) + sums(all) + rates(costs);
}

}  // namespace computron
