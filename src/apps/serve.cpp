// computron serve: the main job, under mpirun or srun.
//
// Every rank goes through the same phases, each of which ends in a vote:
//
//   options   read, checked, and compared with rank 0's, as are the program and the models' files
//   output    rank 0 opens it; a job whose results are all there ends here
//   job       device, models, memory, pages, executor
//   input     rank 0 begins to read the requests
//   service   the loops of the ranks (serve/engine.h), then the trace
//
// The heartbeat goes on from before the first phase to behind the last.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "computron/base/log.h"
#include "computron/base/size.h"
#include "computron/base/status_signal.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/serve/batch_front_end.h"
#include "computron/serve/batch_view.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"
#include "computron/serve/live_view.h"
#include "computron/serve/preflight.h"
#include "computron/serve/several_inputs.h"
#include "computron/serve/trace_file.h"
#include "computron/storage/files.h"
#include "src/apps/commands.h"
#include "src/apps/dry_run.h"
#include "src/apps/serve_files.h"
#include "src/apps/serve_options.h"
#include "src/apps/version.h"
#include "src/cli/mpi_command.h"

namespace computron {
namespace {

// What serve was called with, for all its phases.
struct Call {
  const ServeOptions& options;
  const CLI::App& command;
  JobHeartbeat heartbeat;
  ServeHooks& hooks;
};

// Now, as ISO 8601 has it.
std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  char text[32] = "";
  std::tm parts{};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  return text;
}

// "64MiB (8 frames)"; of several groups a pool each.
std::string pools_of(const JobPlan& plan) {
  std::string text;
  for (const GroupPlan& group : plan.groups) {
    const std::size_t bytes =
        plan.page_bytes * static_cast<std::size_t>(group.frames) +
        round_up(plan.slot_bytes * static_cast<std::size_t>(group.adapter_slots), plan.page_bytes);
    const std::string slots = group.adapter_slots > 0
                                  ? fmt::format(", {} slots of {}", group.adapter_slots, format_size(plan.slot_bytes))
                                  : std::string();
    text += fmt::format("{}{} ({} frames{})", text.empty() ? "" : ", ", format_size(bytes), group.frames, slots);
  }
  return text;
}

// What was left to the program, as it chose.
void note_choices(const Job& job, Configuration& configuration) {
  const MeshShape shape = job.mesh().shape;
  const JobPlan& plan = job.plan();
  const std::pair<const char*, std::string> chosen[] = {
      {"tp", fmt::format("{}", shape.tp)}, {"pp", fmt::format("{}", shape.pp)},
      {"device", job.device().name()},     {"page-size", format_size(plan.page_bytes)},
      {"device-memory", pools_of(plan)},   {"guide-memory", format_size(plan.guide_bytes)}};
  for (auto& [option, value] : configuration) {
    for (const auto& [name, choice] : chosen) {
      if (option == name && value != choice) value = choice;
    }
  }
}

std::string slurm_job_id() {
  const char* const id = std::getenv("SLURM_JOB_ID");
  return id != nullptr ? id : "";
}

RunInfo info_of(const Job& job, double wall_s) {
  const MeshShape shape = job.mesh().shape;
  const double link = job.options().link_gb_per_s;
  return {.wall_s = wall_s,
          .ranks = job.mesh().job.size(),
          .tp = shape.tp,
          .pp = shape.pp,
          .groups = static_cast<int>(job.groups().size()),
          .device = job.device().name(),
          .link_gb_per_s = link,
          .link_emulated = link > 0,
          .link_coded = job.plan().page_coding == PageCoding::kCoded,
          .program = program_info(),
          .host = host_name(),
          .slurm_job_id = slurm_job_id(),
          .predicted = job.options().predicted};
}

// Ends the ranks in order, with what rank 0 says.
[[noreturn]] void throw_stopped() { throw VoteError(ExitCode::kStopped, 0, host_name(), stopped_early()); }

ViewOptions view_options(const ServeOptions& options, const ServeFiles& files) {
  return {.progress_line = !options.quiet,
          .status_file = options.status,
          .progress_file = options.progress,
          .done_before = files.complete_lines};
}

// Whoever waits for the end of the job by these files sees it.
void show_complete(const ServeOptions& options, const ServeFiles& files) {
  StatusWriter writer(options.status, options.progress);
  JobStatus status;
  status.total_known = true;
  status.done_before = files.complete_lines;
  status.end = "finished";
  writer.put(std::move(status), /*print=*/false);
}

// Of the input in this place. One that is alone shows how the job stands.
BatchOptions batch_options(const ServeOptions& options, const ServeFiles& files, std::size_t input) {
  const bool alone = files.inputs.size() == 1;
  std::vector<int> priorities;
  for (const ModelEntry& model : options.job.options.models) priorities.push_back(model.priority);
  return {.replay = options.replay,
          .live = files.inputs[input].requests == "-",
          .view = alone ? std::optional(view_options(options, files)) : std::nullopt,
          .priorities = std::move(priorities),
          .ahead = static_cast<std::size_t>(options.job.options.max_seqs),
          .recorder = files.recorder.get(),
          .first_id = SeveralInputs::first_id(input)};
}

// The configuration as it was chosen, and what else stands in the file of --metrics. `started`: utc_time() then.
RunInfo info_at_end(const Call& call, const Job& job, const ServeFiles& files, double start_s, std::string started) {
  RunInfo info = info_of(job, now_s() - start_s);
  info.started = std::move(started);
  info.requests_before = files.complete_lines;
  for (const InputFiles& input : files.inputs) {
    info.attempt = std::max(info.attempt, input.writer->attempt());
    info.requests_before += input.writer->history().lines_done();
  }
  info.configuration = all_options(call.command);
  note_choices(job, info.configuration);
  return info;
}

std::vector<MetricsGroup> metrics_groups(const Job& job) {
  std::vector<MetricsGroup> groups;
  for (const RankGroup& group : job.mesh().groups) {
    groups.push_back({group.shape.tp, group.shape.pp, group.first_rank, job.models().in_group(group.index)});
  }
  return groups;
}

// The record is whole, or has ended before: that is said even where nothing else is.
void end_record(const Call& call, StepRecorder& recorder, bool all_done, double now) {
  call.heartbeat.run_beside([&] { recorder.finish(all_done, now); });
  if (!recorder.is_whole()) {
    spdlog::warn("{}", recorder.summary());
  } else if (!call.options.quiet) {
    spdlog::info("{}", recorder.summary());
  }
}

std::unique_ptr<FrontEnd> make_front_end(const ServeOptions& options, const Job& job, const ServeFiles& files,
                                         Metrics& metrics, double start_s) {
  std::vector<std::unique_ptr<BatchFrontEnd>> batches;
  std::vector<const BatchCounts*> counts;
  for (std::size_t i = 0; i < files.inputs.size(); ++i) {
    const InputFiles& input = files.inputs[i];
    batches.push_back(std::make_unique<BatchFrontEnd>(*input.reader, *input.writer, metrics, job.models().served(),
                                                      start_s, batch_options(options, files, i)));
    counts.push_back(&batches.back()->counts());
  }
  if (batches.size() == 1) return std::move(batches.front());
  auto view = std::make_unique<BatchView>(std::move(counts), metrics, job.models().names(), start_s,
                                          view_options(options, files));
  return std::make_unique<SeveralInputs>(std::move(batches), std::move(view), files.recorder.get());
}

// Returns whether every request has its result, and in `start_s` the start of the service.
bool serve_rank_0(const Call& call, Job& job, ServeFiles& files, double& start_s) {
  const ServeOptions& options = call.options;
  const KnownCosts costs(job, job.scheduler_options(0).costs, files.profiles);
  GroupSchedulers schedulers(job, costs.options(), [&](int group, CostModel& model) { costs.teach(group, model); });
  Metrics metrics(job.models().names(), metrics_groups(job));
  const std::string started = utc_time();
  if (files.recorder) files.recorder->begin(record_header(job, schedulers.dispatcher(), version_number(), started));
  start_s = now_s();
  const std::unique_ptr<FrontEnd> batch = make_front_end(options, job, files, metrics, start_s);
  const std::unique_ptr<FrontEnd> around = call.hooks.around(*batch);
  FrontEnd& front_end = around ? *around : *batch;
  const bool all_done = Engine(job, schedulers.dispatcher(), front_end, metrics, start_s, options.drain, call.heartbeat,
                               files.recorder.get())
                            .run();
  const RunInfo info = info_at_end(call, job, files, start_s, started);
  for (const InputFiles& input : files.inputs) {
    if (all_done) call.heartbeat.run_beside([&] { std::move(*input.writer).finish(); });
  }
  if (!options.metrics.empty()) write_file_atomically(options.metrics, metrics.to_json(info));
  if (!options.quiet) spdlog::info("{}", metrics.summary(info));
  if (files.recorder) end_record(call, *files.recorder, all_done, info.wall_s);
  return all_done;
}

RankTrace trace_of(const Job& job) {
  const Mesh& mesh = job.mesh();
  return {*job.trace(), mesh.job.rank(), job.clock(),
          mesh.groups.size() > 1 ? std::optional(mesh.group_index) : std::nullopt};
}

// Collective. What every rank did when, to the file of --trace.
void write_traces(const Call& call, Job& job, double start_s) {
  job.progress().set_hook([&] { call.heartbeat.poll(); });
  write_trace(call.options.trace, job.mesh(), job.progress(), trace_of(job), start_s);
  job.progress().set_hook({});
}

// The ranks' loops; then their traces, if wanted.
void serve_all(const Call& call, Job& job, ServeFiles& files) {
  double start_s = 0;
  const bool all_done =
      job.mesh().schedules() ? serve_rank_0(call, job, files, start_s) : run_worker(job, call.heartbeat);
  if (!call.options.trace.empty()) write_traces(call, job, start_s);
  job.mesh().job.barrier();  // while ranks are still watched: a disk may take its time
  if (!all_done) throw_stopped();
}

// A dry run has nothing that others could wait for, and takes the time that it takes.
HeartbeatOptions heartbeat_options(const ServeOptions& options) {
  HeartbeatOptions heartbeat{.limits = std::nullopt, .folder = options.recorder};
  if (options.watchdog == 0 || options.dry_run) return heartbeat;
  heartbeat.limits = WatchdogLimits{}.times(options.watchdog);
  // A rank 0 that leaves in haste looks at nothing but its results, and may wait for a full disk.
  heartbeat.limits->finish = heartbeat.limits->silence + options.journal.disk_wait_s;
  return heartbeat;
}

// Collective. Every rank throws where ranks differ in program, options or models' files. What the device is, is only
// known later (RankDevice).
void compare_ranks(const Call& call, const Communicator& world) {
  std::vector<RankProperty> info;
  agreed(world, [&] {
    info = program_properties();
    const std::vector<RankProperty> more = configuration_properties(call.command.config_to_str(/*default_also=*/true));
    info.insert(info.end(), more.begin(), more.end());
    const std::vector<GroupSpec>& placement = call.options.job.options.placement;
    if (!placement.empty()) info.push_back({"the placement", to_string(placement)});
  });
  const std::vector<RankProperty> checkpoints = checkpoint_properties(world, call.options.job.options.models);
  info.insert(info.end(), checkpoints.begin(), checkpoints.end());
  call.hooks.compare(world.rank(), info);
  require_same(world, info);
}

void log_options(const CLI::App& command) {
  std::string lines;
  for (const auto& [option, value] : changed_options(command)) lines += fmt::format("\n  --{} {}", option, value);
  spdlog::info("options that differ from the defaults:{}", lines);
}

// All phases.
void serve_watched(const Call& call, Communicator world) {
  const ServeOptions& options = call.options;
  const bool reports = world.rank() == 0;
  ServeFiles files;
  compare_ranks(call, world);
  agreed(world, [&] {
    if (reports) call.heartbeat.run_beside([&] { open_output(options, world.size(), files); });
  });
  if (is_complete(world, files)) {
    if (reports) call.heartbeat.run_beside([&] { show_complete(options, files); });
    return;
  }
  if (reports) log_options(call.command);
  JobOptions job_options = options.job.options;
  job_options.page_bytes = kept_page_bytes(world, job_options, files);
  Job job(std::move(job_options), std::move(world), call.heartbeat, call.hooks, std::move(files.indices));
  agreed(job.mesh().job, [&] {
    throw_if_stopped();
    if (reports) call.heartbeat.run_beside([&] { open_input(options, job, files); });
  });
  const bool coded = job.plan().page_coding == PageCoding::kCoded;
  RequestReader* const reader = options.dry_run && reports ? files.inputs.front().reader.get() : nullptr;
  options.dry_run ? dry_run(job, reader, options.replay, files.profiles, coded) : serve_all(call, job, files);
}

// An end that all ranks agree on is in order and its cause is known: the flight records go. After any other they stay.
void serve(ServeOptions& options, Communicator world, const CLI::App& command, ServeHooks& hooks) {
  Heartbeat heartbeat(world, heartbeat_options(options));
  if (world.rank() == 0 && !heartbeat.recorder().path().empty()) {
    spdlog::info("each rank's last events, unless it ends in order: {} and so on", heartbeat.recorder().path());
  }
  try {
    agreed(world, [&] {
      options.complete();
      throw_if_stopped();
    });
    serve_watched({options, command, JobHeartbeat(heartbeat), hooks}, std::move(world));
  } catch (const VoteError&) {
    heartbeat.recorder().remove();
    throw;
  }
  heartbeat.recorder().remove();
}

void forbid_core_dumps() {
  rlimit limit{};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &limit);  // lowering it is always allowed
}

}  // namespace

void add_serve(CLI::App& app, ServeHooks& hooks) {
  auto* command = app.add_subcommand("serve", "Serve a batch of requests over many models, under mpirun or srun");
  const auto options = std::make_shared<ServeOptions>();
  add_serve_options(*command, *options);
  command->callback([command, options, &hooks] {
    if (!options->config.empty()) apply_config(*command, options->config);
    options->check_files();
    if (!options->core) forbid_core_dumps();
    catch_stop_signals();
    catch_status_signal();
    run_under_mpi(options->quiet, [&](Communicator world) { serve(*options, std::move(world), *command, hooks); });
  });
}

}  // namespace computron
