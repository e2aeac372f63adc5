#include "computron/sched/scheduler_state.h"

#include <algorithm>
#include <map>
#include <utility>

namespace computron {
namespace {

std::vector<std::vector<const ShardLayout*>> layouts_of(const std::vector<ModelShape>& models) {
  std::vector<std::vector<const ShardLayout*>> layouts;
  for (const ModelShape& model : models) layouts.push_back(model.layouts);
  return layouts;
}

std::vector<ModelWork> work_of(const std::vector<ModelShape>& models, const SchedulerOptions& options) {
  std::vector<ModelWork> work;
  for (const ModelShape& model : models) {
    work.emplace_back(model.caches.front().block_tokens, model.eos_tokens, options.prefix_caching,
                      /*watches_deadlines=*/options.on_late == OnLate::kDrop);
  }
  return work;
}

StagePool pool_of(const std::vector<ModelShape>& models, std::size_t stage, const SchedulerOptions& options) {
  std::vector<const ShardLayout*> layouts;
  std::vector<bool> pinned;
  for (const ModelShape& model : models) {
    layouts.push_back(model.layouts[stage]);
    pinned.push_back(model.pinned);
  }
  return {layouts, options.frames, options.host_slots, pinned, options.adapter_slots};
}

std::vector<int> families_of(const std::vector<ModelShape>& models) {
  std::map<std::vector<Digest128>, std::vector<ModelId>> alike;
  for (ModelId model = 0; model < models.size(); ++model) {
    std::vector<Digest128> family;
    for (const ShardLayout* layout : models[model].layouts) {
      if (layout->family) family.push_back(*layout->family);
    }
    if (family.size() == models[model].layouts.size()) alike[family].push_back(model);
  }
  std::vector<int> families(models.size(), SchedulerState::kAlone);
  int number = 0;
  for (const auto& [family, members] : alike) {
    if (members.size() < 2) continue;
    for (const ModelId model : members) families[model] = number;
    ++number;
  }
  return families;
}

}  // namespace

SchedulerState::SchedulerState(std::vector<ModelShape> shapes, std::unique_ptr<Policy> policy,
                               const SchedulerOptions& of_job)
    : models(std::move(shapes)),
      options(of_job),
      families(families_of(models)),
      agenda(models.size(), models.front().layouts.size(), std::move(policy)),
      costs(layouts_of(models), options.costs),
      work(work_of(models, options)) {
  for (std::size_t stage = 0; stage < models.front().layouts.size(); ++stage) {
    pools.push_back(pool_of(models, stage, options));
  }
}

bool SchedulerState::misses_pages(ModelId model) const {
  return std::ranges::any_of(pools, [model](const StagePool& pool) { return pool.missing_pages(model) > 0; });
}

void SchedulerState::close(SequenceId sequence) {
  for (StagePool& pool : pools) pool.state().close(sequence);
  closed.push_back(sequence);
}

}  // namespace computron
