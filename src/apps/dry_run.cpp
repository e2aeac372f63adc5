#include "src/apps/dry_run.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "computron/base/size.h"
#include "computron/comm/agreed.h"
#include "computron/placement/profile_file.h"
#include "computron/plan/machine_costs.h"
#include "computron/plan/plan_report.h"
#include "computron/plan/profiled_costs.h"
#include "computron/serve/group_schedulers.h"

namespace computron {
namespace {

constexpr double kLatency_s = 20e-6;  // of a step or its report, each way, where no profile says it

void submit_all(RequestReader& reader, Progress& progress, bool replay, Dispatcher& dispatcher) {
  progress.wait_until([&] {
    while (std::optional<IncomingRequest> incoming = reader.poll()) {
      auto* parts = std::get_if<RequestParts>(&incoming->content);
      if (parts == nullptr) continue;  // a line that is no request costs no time
      for (Request& request : *parts) {
        if (!replay) request.arrival_s = 0;
        request.watch = nullptr;  // tokens are made up: no text ends early
        dispatcher.submit(std::move(request));
      }
    }
    return reader.finished();
  });
  dispatcher.close_input();
}

std::vector<std::vector<const ShardLayout*>> layouts_of(const Job& job, int group) {
  std::vector<std::vector<const ShardLayout*>> layouts;
  for (const ModelShape& shape : job.models().shapes(group)) layouts.push_back(shape.layouts);
  return layouts;
}

// What is known of the ranks: by measuring them here, and from profiles.
class KnownCosts {
 public:
  // Borrows `job`. Logs which models the profiles lack, or say nothing of.
  KnownCosts(const Job& job, const CostOptions& measured, const ProfileFile& profiles) : job_(job), options_(measured) {
    const MachineProfile& machine = profiles.machine;
    const bool asked_for = job.options().link_gb_per_s > 0;  // and so emulated, and measured here
    if (machine.link_bytes_per_s > 0 && !asked_for) options_.link_bytes_per_s = machine.link_bytes_per_s;
    if (machine.step_latency_s > 0) latency_s_ = machine.step_latency_s;
    for (const RankGroup& group : job.mesh().groups) groups_.push_back(shapes_of(group, profiles.models));
  }

  const CostOptions& options() const { return options_; }
  double latency_s() const { return latency_s_; }
  // Of all models of all groups, whose passes are profiled; empty without profiles.
  std::string basis(const std::string& profiles) const {
    if (profiles.empty()) return {};
    std::size_t known = 0, all = 0;
    for (const RankGroup& group : job_.mesh().groups) {
      known += groups_[static_cast<std::size_t>(group.index)].size();
      all += job_.models().in_group(group.index).size();
    }
    return fmt::format("passes of {} of {} models as in {}\n", known, all, profiles);
  }
  void teach(int group, CostModel& costs) const {
    for (const auto& [model, shape] : groups_[static_cast<std::size_t>(group)]) seed_costs(costs, model, shape);
  }

 private:
  using Shapes = std::vector<std::pair<ModelId, ShapeProfile>>;  // by the group's models

  Shapes shapes_of(const RankGroup& group, const std::vector<ModelProfile>& profiles) const {
    Shapes shapes;
    const auto layouts = layouts_of(job_, group.index);
    const std::vector<std::string> names = job_.models().names(group.index);
    for (ModelId m = 0; m < names.size() && !profiles.empty(); ++m) {
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

  const Job& job_;
  CostOptions options_;
  double latency_s_ = kLatency_s;
  std::vector<Shapes> groups_;  // [group]
};

// A group's ranks in virtual time, and what they are asked to do.
struct VirtualGroup {
  VirtualGroup(const Job& job, int group, const KnownCosts& costs)
      : layouts(layouts_of(job, group)),
        mesh(layouts, costs_of(layouts, group, costs), costs.latency_s()),
        recorder(layouts, job.groups()[static_cast<std::size_t>(group)].shape.tp) {}

  static CostModel costs_of(const std::vector<std::vector<const ShardLayout*>>& layouts, int group,
                            const KnownCosts& known) {
    CostModel costs(layouts, known.options());
    known.teach(group, costs);
    return costs;
  }

  std::vector<std::vector<const ShardLayout*>> layouts;
  VirtualMesh mesh;
  PlanRecorder recorder;
};

// How much less all models together are over the links.
std::string coded_basis(const Job& job) {
  std::size_t bytes = 0, link_bytes = 0;
  for (const RankGroup& group : job.mesh().groups) {
    for (const auto& stages : layouts_of(job, group.index)) {
      for (const ShardLayout* layout : stages) {
        bytes += layout->total_used_bytes();
        link_bytes += layout->total_link_bytes();
      }
    }
  }
  return fmt::format("coded pages of {} take {} over the links, estimated from a sample of the models' files\n",
                     format_size(bytes), format_size(link_bytes));
}

std::string plan_text(const Job& job, const VirtualRun& run, std::deque<VirtualGroup>& groups,
                      const CostOptions& costs) {
  std::vector<Plan> plans;
  for (std::size_t g = 0; g < groups.size(); ++g) plans.push_back(groups[g].recorder.finish(run, g, groups[g].mesh));
  const std::string deadlines = format_deadlines(run, job.models().names());
  if (plans.size() == 1) return format_plan(plans.front(), job.models().names(), costs) + deadlines;
  std::string text;
  for (const RankGroup& group : job.mesh().groups) {
    text += format_group_plan(fmt::format("group {}: tp {} x pp {} from rank {}", group.index, group.shape.tp,
                                          group.shape.pp, group.first_rank),
                              plans[static_cast<std::size_t>(group.index)], job.models().names(group.index));
  }
  return text + format_sum(plans, costs) + deadlines;
}

}  // namespace

void dry_run(Job& job, RequestReader* reader, bool replay, const std::string& profiles, bool coded) {
  ProfileFile file;
  agreed(job.mesh().job, [&] {
    if (job.mesh().schedules() && !profiles.empty()) file = read_profiles(profiles);
    if (job.mesh().schedules() && coded) job.estimate_link_bytes();
  });
  const CostOptions measured =
      measure_costs(job.mesh().job, job.device(), job.ops(), job.progress(), job.models().weight_dtype(0));
  if (reader == nullptr) return;
  const KnownCosts costs(job, measured, file);
  GroupSchedulers schedulers(job, costs.options(), [&](int group, CostModel& model) { costs.teach(group, model); });
  submit_all(*reader, job.progress(), replay, schedulers.dispatcher());
  std::deque<VirtualGroup> groups;
  std::vector<VirtualMesh*> meshes;
  for (const RankGroup& group : job.mesh().groups) meshes.push_back(&groups.emplace_back(job, group.index, costs).mesh);
  const VirtualRun run =
      run_virtually(schedulers.dispatcher(), meshes, [&](const auto& sent) { groups[sent.group].recorder.add(sent); });
  fmt::print("{}{}{}", plan_text(job, run, groups, costs.options()), costs.basis(profiles),
             coded ? coded_basis(job) : "");
}

}  // namespace computron
