#include "src/apps/known_costs.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "computron/plan/profiled_costs.h"

namespace computron {
namespace {

constexpr double kLatency_s = 20e-6;  // where no profile says it

}  // namespace

std::vector<std::vector<const ShardLayout*>> layouts_of(const Job& job, int group) {
  std::vector<std::vector<const ShardLayout*>> layouts;
  for (const ModelShape& shape : job.models().shapes(group)) layouts.push_back(shape.layouts);
  return layouts;
}

KnownCosts::KnownCosts(const Job& job, const CostOptions& otherwise, const std::optional<NamedProfiles>& profiles)
    : job_(job), options_(otherwise), latency_s_(kLatency_s), groups_(job.mesh().groups.size()) {
  if (!profiles) return;
  file_ = profiles->file;
  const MachineProfile& machine = profiles->content.machine;
  const bool emulated = job.options().link_gb_per_s > 0;
  if (machine.link_bytes_per_s > 0 && !emulated) options_.link_bytes_per_s = machine.link_bytes_per_s;
  if (machine.step_latency_s > 0) latency_s_ = machine.step_latency_s;
  for (const RankGroup& group : job.mesh().groups) {
    groups_[static_cast<std::size_t>(group.index)] = shapes_of(group, profiles->content.models);
  }
}

std::string KnownCosts::basis() const {
  if (file_.empty()) return {};
  std::size_t known = 0, all = 0;
  for (const RankGroup& group : job_.mesh().groups) {
    known += groups_[static_cast<std::size_t>(group.index)].size();
    all += job_.models().in_group(group.index).size();
  }
  return fmt::format("passes of {} of {} models as in {}\n", known, all, file_);
}

void KnownCosts::teach(int group, CostModel& costs) const {
  for (const auto& [model, shape] : groups_[static_cast<std::size_t>(group)]) seed_costs(costs, model, shape);
}

KnownCosts::Shapes KnownCosts::shapes_of(const RankGroup& group, const std::vector<ModelProfile>& profiles) const {
  Shapes shapes;
  const auto layouts = layouts_of(job_, group.index);
  const std::vector<std::string> names = job_.models().names(group.index);
  for (ModelId m = 0; m < names.size(); ++m) {
    const auto model = std::ranges::find(profiles, names[m], &ModelProfile::id);
    const ShapeProfile* shape = model != profiles.end() ? model->find({group.shape.tp, group.shape.pp}) : nullptr;
    const std::string fault = model == profiles.end() ? "they do not have the model"
                              : shape == nullptr      ? "they do not have the shape"
                                                      : why_unfit(*shape, layouts[m]);
    if (fault.empty()) {
      shapes.emplace_back(m, *shape);
    } else {
      spdlog::warn("--profiles say nothing of {} at tp {} x pp {}, whose passes come from a formula: {}", names[m],
                   group.shape.tp, group.shape.pp, fault);
    }
  }
  return shapes;
}

}  // namespace computron
