#include "computron/plan/virtual_mesh.h"

#include <algorithm>
#include <cmath>

namespace computron {
namespace {

constexpr std::size_t kPassesKept = 64;  // of a stage; fetches wait for no earlier ones
constexpr TokenId kSomeToken = -1;       // nobody's end-of-sequence token

std::vector<SampledRow> some_rows(const Step& step) {
  SampledRow row;
  row.token = kSomeToken;
  row.finite = true;
  return std::vector<SampledRow>(static_cast<std::size_t>(step.logit_rows()), row);
}

std::vector<std::vector<float>> some_values(const Step& step) {
  std::vector<std::vector<float>> values;
  for (const SequenceChunk& chunk : step.chunks) {
    if (chunk.values > 0) values.emplace_back(chunk.values);
  }
  return values;
}

}  // namespace

VirtualMesh::VirtualMesh(std::vector<std::vector<const Image*>> images, CostModel costs, double latency_s)
    : images_(std::move(images)), costs_(std::move(costs)), latency_s_(latency_s), stages_(images_.front().size()) {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (const auto& stages : images_) stages_[s].landed_s.emplace_back(stages[s]->pages(), 0.0);
    stages_[s].cache_landed_s.assign(images_.size(), 0.0);
  }
}

VirtualMesh::Execution VirtualMesh::execute(const Step& step, double now_s) {
  Execution execution;
  const double sent_s = now_s + latency_s_;
  double end_s = sent_s;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    enqueue(step, s);
    if (!step.chunks.empty()) remember_pass(step, s);
    drain(stage, s, sent_s);
    const double begin_s = std::max(end_s, stage.compute_free_s);
    double compute_s = 0;
    if (!step.chunks.empty()) {
      if (s == 0) execution.begin_s = begin_s;
      compute_s = costs_.stage_pass_s(step.model, s, step.rows());
      end_s = stage.compute_free_s = pass(step, s, begin_s, execution);
      drain(stage, s, sent_s);
    } else {
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
    if (change.slots.empty() || change.kind == CacheChange::kDropSpilled) continue;
    const std::size_t bytes = change.slots.size() * images_[change.model][number]->page_bytes;
    stage.queue.push_back({change.after, bytes, &stage.cache_landed_s[change.model]});
  }
  for (const Fetch& fetch : plan.fetches) {
    stage.queue.push_back(
        {fetch.after, images_[fetch.model][number]->used_bytes[fetch.page], &stage.landed_s[fetch.model][fetch.page]});
  }
}

void VirtualMesh::drain(Stage& stage, std::size_t number, double sent_s) {
  for (double free_s = 0; !stage.queue.empty() && use_is_over(stage, stage.queue.front().after, free_s);
       stage.queue.pop_front()) {
    const Transfer& transfer = stage.queue.front();
    const double seconds = costs_.transfer_s(number, transfer.bytes);
    stage.link_free_s = std::max({stage.link_free_s, sent_s, free_s}) + seconds;
    *transfer.landed_s = stage.link_free_s;
    stage.bytes += transfer.bytes;
    stage.busy_s += seconds;
    stage.copied.emplace_back(stage.link_free_s, stage.bytes);
  }
}

// Whether the time at which the compute of the stage gets past `point` is known.
bool VirtualMesh::use_is_over(const Stage& stage, UsePoint point, double& when_s) const {
  when_s = 0;
  const auto pass =
      std::find_if(stage.passes.begin(), stage.passes.end(), [point](const Pass& p) { return p.step == point.step; });
  if (pass == stage.passes.end()) return true;  // long ago, or a step without a pass
  const std::size_t use = std::min<std::size_t>(point.use, pass->uses - 1);
  if (use >= pass->ends_s.size()) return false;
  when_s = pass->ends_s[use];
  return true;
}

void VirtualMesh::remember_pass(const Step& step, std::size_t number) {
  std::deque<Pass>& passes = stages_[number].passes;
  passes.push_back({step.id, images_[step.model][number]->uses.size(), {}});
  if (passes.size() > kPassesKept) passes.pop_front();
}

// Use by use; fetches that waited for one of them get on.
double VirtualMesh::pass(const Step& step, std::size_t number, double begin_s, Execution& execution) {
  Stage& stage = stages_[number];
  const Image& image = *images_[step.model][number];
  const double compute_s = costs_.stage_pass_s(step.model, number, step.rows());
  double bytes = 0, exposed_s = 0;
  for (const PageId page : image.uses) bytes += static_cast<double>(image.used_bytes[page]);
  double now_s = std::max(begin_s, stage.cache_landed_s[step.model]);
  for (PageUse use = 0; use < image.uses.size(); ++use) {
    const PageId page = image.uses[use];
    drain(stage, number, 0);
    const double& landed_s = stage.landed_s[step.model][page];
    const bool queued = std::any_of(stage.queue.begin(), stage.queue.end(), [&](const Transfer& transfer) {
      return transfer.landed_s == &landed_s && transfer.after < UsePoint{step.id, use};
    });
    ensure(!queued, "a pass uses a page whose fetch waits for the pass itself");
    exposed_s += std::max(landed_s - now_s, 0.0);
    now_s = std::max(now_s, landed_s) + compute_s * static_cast<double>(image.used_bytes[page]) / bytes;
    stage.passes.back().ends_s.push_back(now_s);
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

VirtualRun run_virtually(Scheduler& scheduler, VirtualMesh& mesh, bool keep_steps) {
  std::vector<VirtualRun::SentStep> steps;
  VirtualRun run = run_virtually(scheduler, mesh, [&](const VirtualRun::SentStep& sent) {
    if (keep_steps) steps.push_back(sent);
  });
  run.steps = std::move(steps);
  return run;
}

VirtualRun run_virtually(Scheduler& scheduler, VirtualMesh& mesh,
                         const std::function<void(const VirtualRun::SentStep&)>& observe) {
  struct Pending {
    double reported_s;
    Step step;
    std::vector<StageTimes> times;
  };
  VirtualRun run;
  std::deque<Pending> pending;
  double now_s = 0;
  for (;;) {
    while (!pending.empty() && pending.front().reported_s <= now_s) {
      const Pending done = std::move(pending.front());
      pending.pop_front();
      const std::vector<SampledRow> rows = some_rows(done.step);
      const std::vector<std::vector<float>> values = some_values(done.step);
      scheduler.completed(done.step.id, {rows, values}, now_s, done.times);
    }
    Decision decision = scheduler.next(now_s);
    for (Completion& completion : scheduler.take_completions()) run.completions.push_back(std::move(completion));
    if (std::holds_alternative<AllDone>(decision)) break;
    if (auto* planned = std::get_if<PlannedStep>(&decision)) {
      const VirtualMesh::Execution execution = mesh.execute(planned->step, now_s);
      run.swaps += planned->swaps.size();
      run.exposed_s += execution.exposed_s;
      pending.push_back({execution.reported_s, planned->step, execution.times});
      observe({now_s, execution, std::move(*planned)});
      continue;
    }
    double until_s = std::get<WaitUntil>(decision).time_s;
    if (!pending.empty()) until_s = std::min(until_s, pending.front().reported_s);
    ensure(std::isfinite(until_s), "the scheduler waits for nothing");
    now_s = std::max(now_s, until_s);
  }
  run.end_s = now_s;
  return run;
}

}  // namespace computron
