#include "computron/serve/job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "computron/base/size.h"
#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/device/profiler.h"

namespace computron {
namespace {

MeshShape mesh_shape(const JobOptions& options, int ranks) {
  const int pp = options.pp > 0 ? options.pp : options.tp > 0 ? std::max(1, ranks / options.tp) : 1;
  const int tp = options.tp > 0 ? options.tp : std::max(1, ranks / pp);
  return {tp, pp};
}

// Collective.
Mesh make_mesh(const JobOptions& options, Communicator world) {
  const MeshShape shape = mesh_shape(options, world.size());
  agreed(world, [&] {
    if (shape.ranks() != world.size()) {
      throw ConfigError(fmt::format("tp {} x pp {} needs {} ranks, but the job has {}", shape.tp, shape.pp,
                                    shape.ranks(), world.size()));
    }
  });
  return Mesh(shape, std::move(world));
}

// Null where nobody would read it.
std::unique_ptr<Trace> make_trace(bool traced, FlightRecorder* recorder) {
  TraceRanges* const ranges = profiler_ranges();
  if (!traced && recorder == nullptr && ranges == nullptr) return nullptr;
  return std::make_unique<Trace>(traced ? Trace::kMaxEvents : 0, recorder, ranges);
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
      hooks_(hooks),
      mesh_(make_mesh(options_, std::move(world))),
      trace_(make_trace(options_.trace, heartbeat.recorder())),
      device_(options_, mesh_, trace_.get(), hooks),
      models_(options_, mesh_, device_, heartbeat, std::move(indices)),
      pages_(make_page_store()),
      memory_(options_, mesh_, device_, models_, pages_, steps_in_flight(mesh_.shape)),
      plan_(make_plan()) {
  agreed(mesh_.world, [&] { check(); });
  if (!options_.load) return;
  heartbeat.enter(SignOfLife::kLoad);
  agreed(mesh_.world, [&] { load_pages(heartbeat); });
  agreed(mesh_.world, [&] { map_pages(); });
  heartbeat.enter(SignOfLife::kStart);
  make_executor();
  if (options_.trace) clock_ = measure_clock_offset(mesh_.world);
}

// Collective.
PageStore Job::make_page_store() const {
  std::vector<ShardSource> shards;
  for (ModelId m = 0; m < models_.size(); ++m) {
    shards.push_back({&models_.index(m), &models_.layout(m), &ops().weight_format(), mesh_.t, models_.id(m)});
  }
  return {device_.node(), device().numa_node(), std::move(shards),
          options_.share_host_pages ? HostPages::kShared : HostPages::kPrivate};
}

JobPlan Job::make_plan() const {
  const int in_flight = steps_in_flight(mesh_.shape);
  return {.threads = device_.threads(),
          .ranks_on_node = device_.node().size(),
          .cores_on_node = device_.cores_on_node(),
          .verify_swap = device_.verify_swap(),
          .transport_kind = device_.transport_kind(),
          .max_batch_tokens = models_.max_batch_tokens(),
          .page_bytes = models_.page_bytes(),
          .frames = memory_.frames(),
          .host_slots = memory_.host_slots(),
          .steps_in_flight = in_flight,
          .steps_announced = Scheduler::max_steps_in_flight(in_flight)};
}

// This node's ranks together against what the machine or the control group leaves; every model against the pool.
void Job::check() const {
  memory_.check();
  if (mesh_.rank == 0) make_scheduler(*this);
}

void Job::load_pages(const JobHeartbeat& heartbeat) {
  const double start = now_s();
  std::size_t bytes = 0;
  host_ = std::make_unique<HostStore>(device());
  for (ModelId m = 0; m < models_.size(); ++m) {
    host_->load_next(pages_, plan_.threads, /*times=*/nullptr, [&] { heartbeat.poll(); });
    if (!pages_.loads(static_cast<int>(m))) continue;
    bytes += models_.layout(m).total_used_bytes();
    if (mesh_.rank == 0) spdlog::info("loaded {} ({}/{})", models_.id(m), m + 1, models_.size());
  }
  if (mesh_.rank == 0) {
    const double seconds = now_s() - start;
    spdlog::info("loaded {} a rank in {:.2f} s ({:.2f} GB/s)", format_size(bytes), seconds, 1e-9 * bytes / seconds);
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
  for (ModelId m = 0; m < models_.size(); ++m) layouts.push_back(&models_.layout(m));
  const ExecutorOptions options{.frames = plan_.frames,
                                .frame_bytes = plan_.page_bytes,
                                .host_slots = plan_.host_slots,
                                .max_rows = plan_.max_batch_tokens,
                                .steps_in_flight = plan_.steps_in_flight,
                                .verify_swap = plan_.verify_swap,
                                .trace = trace_.get()};
  const TransportKind kind = plan_.transport_kind;
  if (mesh_.rank == 0 && kind != TransportKind::kHost && mesh_.shape.ranks() > 1) {
    spdlog::info("sums and activations go {}",
                 kind == TransportKind::kDirect ? "from device to device" : "through host memory");
  }
  Communicators communicators = make_communicators(kind, mesh_, device(), progress(),
                                                   Executor::communicator_sizes(layouts, options), trace_.get());
  agreed(mesh_.world, [&] {
    executor_ = std::make_unique<Executor>(mesh_, device(), ops(), progress(), std::move(layouts), *host_,
                                           std::move(communicators), options);
  });
}

Report Job::run(const Step& step) {
  Report report = executor_->run(step);
  hooks_.executed(mesh_.rank, report);
  return report;
}

SchedulerOptions Job::scheduler_options() const {
  SchedulerOptions options{.frames = plan_.frames,
                           .host_slots = plan_.host_slots,
                           .max_batch_tokens = plan_.max_batch_tokens,
                           .max_seqs = options_.max_seqs,
                           .steps_in_flight = plan_.steps_in_flight,
                           .prefix_caching = options_.share_prefixes};
  if (options_.link_gb_per_s > 0) options.costs.link_bytes_per_s = 1e9 * options_.link_gb_per_s;
  return options;
}

Scheduler make_scheduler(const Job& job, const CostOptions& costs) {
  SchedulerOptions options = job.scheduler_options();
  options.costs = costs;
  return {job.models().shapes(), job.models().names(), policy_of(job.options()), options};
}

Scheduler make_scheduler(const Job& job) { return make_scheduler(job, job.scheduler_options().costs); }

}  // namespace computron
