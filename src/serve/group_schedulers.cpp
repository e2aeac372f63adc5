#include "computron/serve/group_schedulers.h"

#include <utility>

namespace computron {
namespace {

std::vector<std::unique_ptr<Scheduler>> make_schedulers(const Job& job, const std::optional<CostOptions>& costs,
                                                        const GroupSchedulers::Lesson& teach) {
  std::vector<std::unique_ptr<Scheduler>> schedulers;
  for (int group = 0; std::cmp_less(group, job.groups().size()); ++group) {
    const CostOptions predicted = costs.value_or(job.scheduler_options(group).costs);
    schedulers.emplace_back(new Scheduler(make_scheduler(job, group, predicted)));  // made in place: it cannot move
    if (teach) teach(group, schedulers.back()->costs());
  }
  return schedulers;
}

std::vector<DispatchGroup> dispatch_groups(const Job& job, const std::vector<std::unique_ptr<Scheduler>>& schedulers) {
  std::vector<DispatchGroup> groups;
  for (std::size_t g = 0; g < schedulers.size(); ++g) groups.push_back({schedulers[g].get(), job.groups()[g].models});
  return groups;
}

}  // namespace

GroupSchedulers::GroupSchedulers(const Job& job, const std::optional<CostOptions>& costs, const Lesson& teach)
    : schedulers_(make_schedulers(job, costs, teach)),
      dispatcher_(dispatch_groups(job, schedulers_), job.models().size()) {}

}  // namespace computron
