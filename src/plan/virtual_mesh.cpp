#include "computron/plan/virtual_mesh.h"

#include <algorithm>

namespace computron {
namespace {

constexpr std::size_t kPassesKept = 64;  // of a stage; fetches wait for no earlier ones

}  // namespace

VirtualMesh::VirtualMesh(std::vector<std::vector<const ShardLayout*>> layouts, CostModel costs, double latency_s)
    : layouts_(std::move(layouts)), costs_(std::move(costs)), latency_s_(latency_s), stages_(layouts_.front().size()) {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    std::vector<const ShardLayout*> of_stage;
    for (const auto& stages : layouts_) {
      of_stage.push_back(stages[s]);
      stages_[s].landed_s.emplace_back(stages[s]->pages(), 0.0);
      stages_[s].used.push_back(used_bytes(*stages[s]));
    }
    stages_[s].shared.emplace(of_stage);
    stages_[s].all_landed_s.assign(layouts_.size(), 0.0);
    stages_[s].cache_landed_s.assign(layouts_.size(), 0.0);
  }
}

// Models share layouts.
const VirtualMesh::UsedBytes* VirtualMesh::used_bytes(const ShardLayout& layout) {
  const auto [used, is_new] = used_.try_emplace(&layout);
  double sum = 0;
  for (const PageId page : layout.uses) {
    if (is_new) used->second.push_back(sum += static_cast<double>(layout.used_bytes[page]));
  }
  return &used->second;
}

VirtualMesh::Execution VirtualMesh::execute(const Step& step, double now_s) {
  Execution execution;
  std::vector<double> known_s;
  if (pass_times_ && !step.chunks.empty()) known_s = pass_times_(step);
  const double sent_s = now_s + latency_s_;
  double end_s = sent_s;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    enqueue(step, s);
    const double begin_s = std::max(end_s, stage.compute_free_s);
    double compute_s = 0;
    if (!step.chunks.empty()) {
      if (s == 0) execution.begin_s = begin_s;
      compute_s = known_s.empty() ? costs_.stage_pass_s(step.model, s, step.rows()) : known_s[s];
      stage.passes.push_back({.step = step.id, .used = stage.used[step.model]});
      if (stage.passes.size() > kPassesKept) stage.passes.pop_front();
      drain(stage, s, sent_s);
      end_s = stage.compute_free_s = pass(step, s, begin_s, compute_s, execution);
      drain(stage, s, sent_s);
    } else {
      drain(stage, s, sent_s);
      end_s = std::max(end_s, begin_s);
    }
    ensure(stage.queue.empty(), "a fetch waits for a use that never ends");
    execution.times.push_back(times_at(stage, end_s, compute_s));
  }
  reported_s_ = std::max(reported_s_, end_s + latency_s_);
  execution.reported_s = reported_s_;
  return execution;
}

void VirtualMesh::enqueue(const Step& step, std::size_t number) {
  Stage& stage = stages_[number];
  const StagePlan& plan = step.stages[number];
  for (const CacheChange& change : plan.caches) {
    if (change.slots.empty() || change.kind == CacheChange::kDropOffloaded) continue;
    const std::size_t bytes = change.slots.size() * layouts_[change.model][number]->page_bytes;
    stage.queue.push_back(
        {change.after, bytes, &stage.cache_landed_s[change.model], {change.model, 0}, /*cache=*/true});
  }
  for (const Fetch& fetch : plan.fetches) {
    const PageRef page{fetch.model, fetch.page};
    stage.queue.push_back(
        {fetch.after, layouts_[fetch.model][number]->page_link_bytes(fetch.page), &landed_s(stage, page), page});
  }
}

double& VirtualMesh::landed_s(Stage& stage, PageRef page) {
  const PageRef first = stage.shared->first(page);
  return stage.landed_s[first.model][first.page];
}

// [model] Whether copies that have not begun bring it anything; empty where there are none.
std::vector<bool> VirtualMesh::awaits_copies(const Stage& stage) const {
  std::vector<bool> awaits;
  if (stage.queue.empty()) return awaits;
  awaits.assign(layouts_.size(), false);
  for (const Transfer& transfer : stage.queue) {
    if (transfer.cache) {
      awaits[transfer.page.model] = true;
    } else {
      stage.shared->for_each(transfer.page, [&](const PageRef& page) { awaits[page.model] = true; });
    }
  }
  return awaits;
}

void VirtualMesh::drain(Stage& stage, std::size_t number, double sent_s) {
  for (double free_s = 0; !stage.queue.empty() && use_is_over(stage, stage.queue.front().after, free_s);
       stage.queue.pop_front()) {
    const Transfer& transfer = stage.queue.front();
    const double seconds = costs_.transfer_s(number, transfer.bytes);
    stage.link_free_s = std::max({stage.link_free_s, sent_s, free_s}) + seconds;
    *transfer.landed_s = stage.link_free_s;
    if (transfer.cache) {
      stage.all_landed_s[transfer.page.model] = stage.link_free_s;
    } else {
      stage.shared->for_each(transfer.page,
                             [&](const PageRef& page) { stage.all_landed_s[page.model] = stage.link_free_s; });
    }
    stage.bytes += transfer.bytes;
    stage.busy_s += seconds;
    stage.copied.emplace_back(stage.link_free_s, stage.bytes);
  }
}

// Whether the time at which the compute of the stage gets past `point` is known.
bool VirtualMesh::use_is_over(const Stage& stage, ReleasePoint point, double& when_s) const {
  when_s = 0;
  const auto pass = std::ranges::lower_bound(stage.passes, point.step, {}, &Pass::step);
  if (pass == stage.passes.end() || pass->step != point.step) return true;  // long ago, or a step without a pass
  const std::size_t use = std::min<std::size_t>(point.use, pass->used->size() - 1);
  if (pass->unhindered) {
    when_s = pass->begin_s + pass->compute_s * (*pass->used)[use] / pass->used->back();
    return true;
  }
  if (use >= pass->ends_s.size()) return false;
  when_s = pass->ends_s[use];
  return true;
}

double VirtualMesh::pass(const Step& step, std::size_t number, double begin_s, double compute_s, Execution& execution) {
  Stage& stage = stages_[number];
  Pass& pass = stage.passes.back();
  pass.begin_s = begin_s;
  pass.compute_s = compute_s;
  pass.unhindered = true;
  const std::vector<ModelChunks> models = step.by_model();
  for (const ModelChunks& own : models) pass.begin_s = std::max(pass.begin_s, stage.cache_landed_s[own.model]);
  const std::vector<bool> awaits = awaits_copies(stage);
  for (const ModelChunks& own : models) {
    const bool all_come = awaits.empty() || !awaits[own.model];
    pass.unhindered &= all_come && stage.all_landed_s[own.model] <= pass.begin_s;
  }
  return pass.unhindered ? pass.begin_s + compute_s : pass_by_use(step, number, execution);
}

// A rider's pages that the pass's own model has not, each with the use of the pass at which it is wanted: as far on in
// the pass as it is in the rider's own.
std::vector<std::pair<PageUse, PageRef>> VirtualMesh::pages_of_riders(const Step& step, std::size_t number) const {
  const SharedPages& shared = *stages_[number].shared;
  const std::size_t uses = layouts_[step.model][number]->uses.size();
  std::vector<bool> of_lead(static_cast<std::size_t>(shared.sets()), false);  // [set] it has its pages
  for (const int set : shared.sets_of(step.model)) of_lead[set] = true;
  std::vector<std::pair<PageUse, PageRef>> pages;
  for (const ModelChunks& own : step.by_model()) {
    if (own.model == step.model) continue;
    const ShardLayout& layout = *layouts_[own.model][number];
    for (std::size_t use = 0; use < layout.uses.size(); ++use) {
      const PageRef page{own.model, layout.uses[use]};
      if (const int set = shared.set_of(page); set != SharedPages::kAlone && of_lead[set]) continue;
      pages.emplace_back(static_cast<PageUse>(use * uses / layout.uses.size()), page);
    }
  }
  std::ranges::sort(pages);
  return pages;
}

// Fetches that waited for a use get on behind it.
double VirtualMesh::pass_by_use(const Step& step, std::size_t number, Execution& execution) {
  Stage& stage = stages_[number];
  Pass& pass = stage.passes.back();
  const ShardLayout& layout = *layouts_[step.model][number];
  double exposed_s = 0, now_s = pass.begin_s;
  const auto of_riders = pages_of_riders(step, number);
  auto rider = of_riders.begin();
  for (PageUse use = 0; use < layout.uses.size(); ++use) {
    const PageId page = layout.uses[use];
    drain(stage, number, 0);
    const double& landed_s = VirtualMesh::landed_s(stage, {step.model, page});
    const bool queued = std::any_of(stage.queue.begin(), stage.queue.end(), [&](const Transfer& transfer) {
      return transfer.landed_s == &landed_s && transfer.after < ReleasePoint{step.id, use};
    });
    ensure(!queued, "a pass uses a page whose fetch waits for the pass itself");
    double there_s = landed_s;
    for (; rider != of_riders.end() && rider->first == use; ++rider) {
      there_s = std::max(there_s, VirtualMesh::landed_s(stage, rider->second));
    }
    exposed_s += std::max(there_s - now_s, 0.0);
    now_s =
        std::max(now_s, there_s) + pass.compute_s * static_cast<double>(layout.used_bytes[page]) / pass.used->back();
    pass.ends_s.push_back(now_s);
  }
  execution.exposed_s = std::max(execution.exposed_s, exposed_s);
  return now_s;
}

StageTimes VirtualMesh::times_at(Stage& stage, double now_s, double compute_s) {
  StageTimes times{.compute_s = compute_s, .link_bytes = stage.bytes, .link_busy_s = stage.busy_s};
  auto late = stage.copied.begin();
  while (late != stage.copied.end() && late->first <= now_s) ++late;
  if (late != stage.copied.end()) {
    times.link_bytes = late == stage.copied.begin() ? 0 : std::prev(late)->second;
    times.link_busy_s -=
        costs_.transfer_s(static_cast<std::size_t>(&stage - stages_.data()), stage.bytes - times.link_bytes);
  }
  if (late != stage.copied.begin()) stage.copied.erase(stage.copied.begin(), std::prev(late));
  return times;
}

}  // namespace computron
