#include "computron/serve/job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "computron/base/size.h"
#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/device/profiler.h"
#include "computron/serve/tokenizers.h"

namespace computron {
namespace {

// Collective.
std::vector<JobGroup> make_groups(const JobOptions& options, const Communicator& world) {
  std::vector<JobGroup> groups;
  agreed(world, [&] { groups = job_groups(options, world.size()); });
  return groups;
}

// Null where nobody would read it.
std::unique_ptr<Trace> make_trace(bool traced, FlightRecorder* recorder) {
  TraceRanges* const ranges = profiler_ranges();
  if (!traced && recorder == nullptr && ranges == nullptr) return nullptr;
  return std::make_unique<Trace>(traced ? Trace::kMaxEvents : 0, recorder, ranges);
}

std::string gain_in_words(std::size_t bytes, std::size_t kept_bytes) {
  if (kept_bytes == bytes) return {};
  return fmt::format(", kept coded in {} (x {:.2f})", format_size(kept_bytes),
                     static_cast<double>(bytes) / static_cast<double>(kept_bytes));
}

// While a stage computes, each of the others may have a step on its way to it or from it.
int steps_in_flight(const MeshShape& mesh) { return mesh.pp + 1; }

std::unique_ptr<Policy> policy_of(const JobOptions& options) {
  return make_policy(name_of(options.policy), {.max_wait_s = options.max_wait_s});
}

}  // namespace

Job::Job(JobOptions options, Communicator world, const JobHeartbeat& heartbeat, ServeHooks& hooks,
         std::vector<CheckpointIndex> indices)
    : options_(std::move(options)),
      groups_(make_groups(options_, world)),
      hooks_(hooks),
      mesh_(shapes_of(groups_), std::move(world)),
      trace_(make_trace(options_.trace, heartbeat.recorder())),
      device_(options_, mesh_, trace_.get(), hooks),
      models_(options_, groups_, mesh_, device_, heartbeat, std::move(indices)),
      pages_(make_page_store()),
      memory_(options_, mesh_, device_, models_, pages_, steps_in_flight(mesh_.shape)),
      plan_(make_plan()) {
  if (mesh_.groups.size() > 1 && heartbeat.recorder() != nullptr) heartbeat.recorder()->note_group(mesh_.group_index);
  agreed(mesh_.job, [&] { check(); });
  if (mesh_.schedules()) memory_.warn();
  if (!options_.load) return;
  heartbeat.enter(SignOfLife::kLoad);
  agreed(mesh_.job, [&] { load_pages(heartbeat); });
  agreed(mesh_.job, [&] {
    map_pages();
    hooks_.loaded(mesh_.job.rank(), *host_);
  });
  models_.gather_link_bytes(mesh_, *host_);
  heartbeat.enter(SignOfLife::kStart);
  make_executor();
  if (options_.trace) clock_ = measure_clock_offset(mesh_.job);
}

// Collective.
PageStore Job::make_page_store() const {
  std::vector<ShardSource> shards;
  const std::vector<ModelId>& own = models_.in_own_group();
  for (ModelId m = 0; m < own.size(); ++m) {
    shards.push_back({&models_.index(own[m]), &models_.layout(m), &ops().weight_format(), mesh_.t, models_.id(own[m])});
  }
  return {device_.node(), device().numa_node(), std::move(shards),
          options_.share_host_pages ? HostPages::kShared : HostPages::kPrivate};
}

JobPlan Job::make_plan() const {
  JobPlan plan{.threads = device_.threads(),
               .ranks_on_node = device_.node().size(),
               .cores_on_node = device_.cores_on_node(),
               .verify_swap = device_.verify_swap(),
               .page_coding = device_.page_coding(),
               .transport_kind = device_.transport_kind(),
               .max_batch_tokens = models_.max_batch_tokens(),
               .page_bytes = models_.page_bytes(),
               .guide_bytes = memory_.guide_bytes()};
  for (const RankGroup& group : mesh_.groups) {
    const int in_flight = steps_in_flight(group.shape);
    plan.groups.push_back({.frames = memory_.of_group(group.index).frames,
                           .host_slots = memory_.of_group(group.index).host_slots,
                           .adapter_slots = memory_.of_group(group.index).adapter_slots,
                           .steps_in_flight = in_flight,
                           .steps_announced = max_steps_in_flight(in_flight)});
  }
  return plan;
}

// This node's ranks together against what the machine or the control group leaves; every model against the pools of the
// groups that have it.
void Job::check() const {
  memory_.check();
  for (const RankGroup& group : mesh_.groups) {
    if (mesh_.schedules()) make_scheduler(*this, group.index);
  }
}

void Job::load_pages(const JobHeartbeat& heartbeat) {
  const double start = now_s();
  const std::vector<ModelId>& own = models_.in_own_group();
  std::size_t bytes = 0, kept_bytes = 0;
  host_ = std::make_unique<HostStore>(device(), plan_.page_coding);
  for (ModelId m = 0; m < own.size(); ++m) {
    host_->load_next(pages_, plan_.threads, /*times=*/nullptr, [&] { heartbeat.poll(); });
    if (!pages_.loads(static_cast<int>(m))) continue;
    for (PageId page = 0; page < static_cast<PageId>(host_->pages(m)); ++page) {
      if (pages_.place(static_cast<int>(m), page).shard != static_cast<int>(m)) continue;  // loaded as another's
      bytes += host_->page_used_bytes(m, page);
      kept_bytes += host_->page_link_bytes(m, page);
    }
    if (mesh_.schedules()) spdlog::info("loaded {} ({}/{})", models_.id(own[m]), m + 1, own.size());
  }
  if (mesh_.schedules()) {
    const double seconds = now_s() - start;
    spdlog::info("loaded {} a rank in {:.2f} s ({:.2f} GB/s){}", format_size(bytes), seconds, 1e-9 * bytes / seconds,
                 gain_in_words(bytes, kept_bytes));
  }
}

// What other ranks have loaded.
void Job::map_pages() {
  host_->map_held_by_others(pages_);
  pages_.close_segments();
}

// Collective.
void Job::make_executor() {
  std::vector<const ShardLayout*> layouts;
  for (ModelId m = 0; m < models_.in_own_group().size(); ++m) layouts.push_back(&models_.layout(m));
  ExecutorOptions options{.memory = {.frames = group_plan().frames,
                                     .frame_bytes = plan_.page_bytes,
                                     .host_slots = group_plan().host_slots,
                                     .adapter_slots = group_plan().adapter_slots,
                                     .adapter_slot_bytes = models_.slot_bytes()},
                          .max_rows = plan_.max_batch_tokens,
                          .steps_in_flight = group_plan().steps_in_flight,
                          .verify_swap = plan_.verify_swap,
                          .wrap_pages = hooks_.page_wrapper(progress()),
                          .trace = trace_.get()};
  if (plan_.guide_bytes > 0) {
    options.guide_bytes = plan_.guide_bytes;
    options.token_texts = [this](ModelId m) { return token_texts(models_.index(models_.in_own_group()[m])); };
  }
  const TransportKind kind = plan_.transport_kind;
  if (mesh_.schedules() && kind != TransportKind::kHost && mesh_.job.size() > 1) {
    spdlog::info("sums and activations go {}",
                 kind == TransportKind::kDirect ? "from device to device" : "through host memory");
  }
  agreed(mesh_.job, [&] {  // every group connects its own ranks
    Communicators communicators = make_communicators(kind, mesh_, device(), progress(),
                                                     Executor::communicator_sizes(layouts, options), trace_.get());
    executor_ = std::make_unique<Executor>(mesh_, device(), ops(), progress(), std::move(layouts), *host_,
                                           std::move(communicators), options);
  });
}

Report Job::run(const Step& step) {
  Report report = executor_->run(step);
  hooks_.executed(mesh_.job.rank(), report);
  return report;
}

SchedulerOptions Job::scheduler_options(int group) const {
  const GroupPlan& plan = plan_.groups[static_cast<std::size_t>(group)];
  SchedulerOptions options{.frames = plan.frames,
                           .host_slots = plan.host_slots,
                           .adapter_slots = plan.adapter_slots,
                           .max_batch_tokens = plan_.max_batch_tokens,
                           .max_seqs = options_.max_seqs,
                           .steps_in_flight = plan.steps_in_flight,
                           .prefix_caching = options_.share_prefixes,
                           .on_late = options_.on_late};
  if (options_.link_gb_per_s > 0) options.costs.link_bytes_per_s = 1e9 * options_.link_gb_per_s;
  hooks_.schedule(options);
  return options;
}

Scheduler make_scheduler(const Job& job, int group, const CostOptions& costs) {
  SchedulerOptions options = job.scheduler_options(group);
  options.costs = costs;
  return {job.models().shapes(group), job.models().names(group), policy_of(job.options()), options};
}

Scheduler make_scheduler(const Job& job, int group) {
  return make_scheduler(job, group, job.scheduler_options(group).costs);
}

}  // namespace computron
