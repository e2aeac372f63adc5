#include "src/apps/dry_run.h"

#include <fmt/format.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "computron/base/size.h"
#include "computron/comm/agreed.h"
#include "computron/plan/machine_costs.h"
#include "computron/plan/plan_report.h"
#include "computron/serve/group_schedulers.h"

namespace computron {
namespace {

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

void dry_run(Job& job, RequestReader* reader, bool replay, const std::optional<NamedProfiles>& profiles, bool coded) {
  agreed(job.mesh().job, [&] {
    if (job.mesh().schedules() && coded) job.estimate_link_bytes();
  });
  const CostOptions measured =
      measure_costs(job.mesh().job, job.device(), job.ops(), job.progress(), job.models().weight_types(0).most());
  if (reader == nullptr) return;
  const KnownCosts costs(job, measured, profiles);
  GroupSchedulers schedulers(job, costs.options(), [&](int group, CostModel& model) { costs.teach(group, model); });
  submit_all(*reader, job.progress(), replay, schedulers.dispatcher());
  std::deque<VirtualGroup> groups;
  std::vector<VirtualMesh*> meshes;
  for (const RankGroup& group : job.mesh().groups) meshes.push_back(&groups.emplace_back(job, group.index, costs).mesh);
  const VirtualRun run =
      run_virtually(schedulers.dispatcher(), meshes, [&](const auto& sent) { groups[sent.group].recorder.add(sent); });
  fmt::print("{}{}{}", plan_text(job, run, groups, costs.options()), costs.basis(), coded ? coded_basis(job) : "");
}

}  // namespace computron
