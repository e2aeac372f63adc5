// computron serve: the main job, under mpirun or srun.

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "computron/base/digest.h"
#include "computron/base/log.h"
#include "computron/base/size.h"
#include "computron/base/status_signal.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/serve/batch_front_end.h"
#include "computron/serve/engine.h"
#include "computron/serve/preflight.h"
#include "computron/serve/tokenizers.h"
#include "computron/serve/trace_file.h"
#include "computron/storage/files.h"
#include "src/apps/commands.h"
#include "src/apps/dry_run.h"
#include "src/cli/job_arguments.h"
#include "src/cli/mpi_command.h"
#include "src/cli/option_checks.h"
#include "src/apps/version.h"

namespace computron {
namespace {

struct ServeOptions {
  JobArguments job;
  std::string requests;
  std::string output;
  std::string metrics;
  std::string trace;
  std::string status;
  std::string config;
  std::string inject_flip;
  std::string shard;
  std::string inject_divergence;
  std::string inject_mismatch;
  bool replay = false;
  bool dry_run = false;
  bool quiet = false;
  std::size_t max_line_bytes = ReaderLimits{}.max_line_bytes;
  std::string durability = "node";
  Drain drain;
  JournalOptions journal;
  std::optional<RequestId> inject_crash;
  std::string recorder;
  double watchdog = 1;
  bool core = false;
};

// What only rank 0 has: the two ends of the flow of requests.
struct Files {
  std::optional<FoundOutput> output;  // until the writer has it
  std::unique_ptr<ResultWriter> writer;
  std::unique_ptr<RequestReader> reader;
};

// Options that only the file names are set as if they had been given. Keys stand alone or in a section [serve].
void apply_config(CLI::App& command, const std::string& file) try {
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(file)) {
    CLI::Option* option = command.get_option_no_throw("--" + item.name);
    const bool here = item.parents.empty() || item.parents == std::vector<std::string>{"serve"};
    if (item.name == "++" || item.name == "--") continue;  // how CLI11 marks the ends of a section
    if (!here || option == nullptr) {
      throw Error(ExitCode::kUsage, fmt::format("{}: computron serve has no option '{}'", file, item.fullname()));
    }
    if (option->count() > 0) continue;
    for (const std::string& input : item.inputs) option->add_result(input);
    option->run_callback();
  }
} catch (const CLI::Error& error) {
  throw Error(ExitCode::kUsage, fmt::format("{}: {}", file, error.what()));
}

// "RANK:COPY[:TIMES]": on that rank, what that copy of a page wrote is damaged at its first TIMES (1) attempts.
InjectedFlip parse_flip(const std::string& text, int this_rank) {
  int rank = 0, copy = 0, times = 1, end = 0, end_of_times = 0;
  const int fields = std::sscanf(text.c_str(), "%d:%d%n:%d%n", &rank, &copy, &end, &times, &end_of_times);
  if (fields < 2 || text.size() != static_cast<std::size_t>(fields == 3 ? end_of_times : end)) {
    throw Error(ExitCode::kUsage, fmt::format("--inject-flip: '{}' is not RANK:COPY[:TIMES]", text));
  }
  if (rank != this_rank) return {};
  return [=](std::uint64_t this_copy, int attempt, std::size_t bytes) -> std::optional<std::size_t> {
    if (this_copy != static_cast<std::uint64_t>(copy) || attempt >= times) return std::nullopt;
    return hash_tuple(this_copy, attempt) % (8 * bytes);
  };
}

// "RANK:STEP:FIELD": on that rank, the state differs in that field of its digest after that step or a later one.
InjectedDivergence parse_divergence(const std::string& text, int this_rank) {
  int rank = 0, step = 0, end = 0;
  if (std::sscanf(text.c_str(), "%d:%d:%n", &rank, &step, &end) != 2 || end == 0) {
    throw Error(ExitCode::kUsage, fmt::format("--inject-divergence: '{}' is not RANK:STEP:FIELD", text));
  }
  if (rank != this_rank) return {};
  return {.step = static_cast<StepId>(step), .field = text.substr(static_cast<std::size_t>(end))};
}

void complete(ServeOptions& options, int rank) {
  if (options.requests.empty()) throw Error(ExitCode::kUsage, "--requests is required");
  options.job.options.load = !options.dry_run;
  if (options.output.empty() && !options.dry_run) throw Error(ExitCode::kUsage, "--output is required");
  options.job.complete();
  options.job.options.trace = !options.trace.empty();
  options.journal.durability = parse_durability(options.durability);
  options.journal.max_line_bytes = options.max_line_bytes;
  if (!options.shard.empty()) options.shard = parse_shard(options.shard).to_string();
  if (!options.inject_flip.empty()) options.job.options.flip = parse_flip(options.inject_flip, rank);
  if (!options.inject_divergence.empty()) {
    options.job.options.divergence = parse_divergence(options.inject_divergence, rank);
  }
}

// Of a file that is written at the end: better refused now. Nothing for no file.
void check_folder(const std::string& file) {
  if (file.empty()) return;
  const std::string folder = std::filesystem::path(file).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
    throw Error(ExitCode::kCannotCreate, fmt::format("cannot create {}: its folder is not writable", file));
  }
}

// Of what the file holds, wherever it lies.
std::string digest_of(CheckpointIndex index) {
  index.path.clear();
  return to_hex(digest128(index.serialize()));
}

// What results depend on: a job that is run again must not mix two kinds. The checkpoints' indices have been read.
Settings settings_of(const ServeOptions& options, int ranks) {
  const JobOptions& job = options.job.options;
  Settings settings = {{"number of ranks", fmt::format("{}", ranks)},
                       {"--tp", fmt::format("{}", job.tp)},
                       {"--pp", fmt::format("{}", job.pp)},
                       {"--device", job.device},
                       {"--reproducible", fmt::format("{}", job.reproducible)},
                       {"--seed", fmt::format("{}", job.seed)},
                       {"--max-line-bytes", fmt::format("{}", options.max_line_bytes)}};
  if (!options.shard.empty()) settings.emplace_back("--shard", options.shard);
  for (std::size_t m = 0; m < job.models.size(); ++m) {
    settings.emplace_back(fmt::format("checkpoint of model {}", job.models[m].id), digest_of(job.indices.at(m)));
  }
  return settings;
}

void open_output(ServeOptions& options, int ranks, Files& files) {
  if (options.requests != "-" && access(options.requests.c_str(), R_OK) != 0) {
    throw Error(ExitCode::kNoInput, fmt::format("cannot read requests from {}", options.requests));
  }
  if (options.dry_run) return;
  options.job.options.indices = read_indices_apart(options.job.options.models);
  files.output = claim_output(options.output, options.requests, settings_of(options, ranks), options.journal);
  check_folder(options.metrics);
  check_folder(options.trace);
  check_folder(options.status);
}

// Rank 0 tells all whether the output is there already.
bool is_complete(const Communicator& world, const ServeOptions& options, const Files& files) {
  const bool complete = files.output && std::holds_alternative<CompleteOutput>(*files.output);
  if (complete) spdlog::info("'{}' has a result of every request: nothing to do", options.output);
  return world.broadcast({static_cast<std::byte>(complete)}, 0)[0] != std::byte{0};
}

void open_input(const ServeOptions& options, const Job& job, Files& files) {
  ReaderLimits limits{.max_line_bytes = options.max_line_bytes, .seed = options.job.options.seed};
  if (!options.shard.empty()) limits.shard = parse_shard(options.shard);
  const std::string folder =
      options.requests == "-" ? "." : std::filesystem::path(options.requests).parent_path().string();
  std::vector<ServedModel> models = job.served_models();
  load_tokenizers(job, models);
  RequestParser parser(std::move(models), limits, folder);
  if (options.dry_run) {
    files.reader = std::make_unique<RequestReader>(options.requests, std::move(parser), limits);
    return;
  }
  ResultJournal journal = std::get<ClaimedOutput>(*std::move(files.output)).begin();
  std::shared_ptr<Spool> spool = options.requests == "-" ? journal.open_spool() : nullptr;
  files.writer = std::make_unique<ResultWriter>(
      std::move(journal), WriterOptions{.commit_always = options.journal.durability == Durability::kResult});
  files.reader = std::make_unique<RequestReader>(options.requests, std::move(parser), limits, &files.writer->history(),
                                                 std::move(spool));
}

// Now, as ISO 8601 has it.
std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  char text[32] = "";
  std::tm parts{};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  return text;
}

using Configuration = std::vector<std::pair<std::string, std::string>>;

// Every option that is not hidden, with its value or what it is without one.
Configuration configuration_of(const CLI::App& command) {
  Configuration configuration;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty() || option->get_lnames().empty() || !option->get_configurable()) continue;
    std::string value;
    for (const std::string& part : option->results()) value += (value.empty() ? "" : " ") + part;
    if (option->count() == 0) value = option->get_items_expected_max() == 0 ? "false" : option->get_default_str();
    configuration.emplace_back(option->get_lnames().front(), value);
  }
  return configuration;
}

// What was left to the program, as it chose.
void note_choices(const Job& job, Configuration& configuration) {
  const MeshShape shape = job.mesh().shape;
  const std::pair<const char*, std::string> chosen[] = {
      {"tp", fmt::format("{}", shape.tp)},
      {"pp", fmt::format("{}", shape.pp)},
      {"device", job.device().name()},
      {"page-size", format_size(job.page_bytes())},
      {"device-memory", fmt::format("{} ({} frames)", format_size(job.page_bytes() * job.frames()), job.frames())}};
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

RunFacts facts_of(const Job& job, double wall_s) {
  const MeshShape shape = job.mesh().shape;
  const double link = job.options().link_gb_per_s;
  return {.wall_s = wall_s,
          .ranks = shape.ranks(),
          .tp = shape.tp,
          .pp = shape.pp,
          .groups = 1,
          .device = job.device().name(),
          .link_gb_per_s = link,
          .link_emulated = link > 0,
          .program = program_facts(),
          .host = host_name(),
          .slurm_job_id = slurm_job_id()};
}

// Ends the ranks in order, with what rank 0 says.
[[noreturn]] void throw_stopped() { throw VoteError(ExitCode::kStopped, 0, host_name(), stopped_early()); }

// Returns whether every request has its result, and in `start` the start of the service.
bool serve_rank_0(const ServeOptions& options, Job& job, Files& files, Configuration configuration, double& start) {
  Scheduler scheduler = make_scheduler(job);
  Metrics metrics(job.model_names());
  start = now_s();
  const std::string started = utc_time();
  BatchFrontEnd batch(*files.reader, *files.writer, metrics, job.served_models(), start,
                      {.replay = options.replay,
                       .live = options.requests == "-",
                       .show_progress = !options.quiet,
                       .status_file = options.status,
                       .crash = options.inject_crash});
  Engine engine(job, scheduler, batch, metrics, start, options.drain);
  const bool all_done = engine.run();
  RunFacts facts = facts_of(job, now_s() - start);
  facts.started = started;
  facts.attempt = files.writer->attempt();
  facts.requests_before = files.writer->history().lines_done();
  note_choices(job, configuration);
  facts.configuration = std::move(configuration);
  if (all_done) job.run_beside_heartbeat([&] { std::move(*files.writer).finish(); });
  if (!options.metrics.empty()) write_file_atomically(options.metrics, metrics.to_json(facts));
  if (!options.quiet) spdlog::info("{}", metrics.summary(facts));
  return all_done;
}

// The ranks' loops; then their traces, if wanted.
void serve_all(const ServeOptions& options, Job& job, Files& files, const Configuration& configuration) {
  double start_s = 0;
  const bool all_done =
      job.mesh().rank == 0 ? serve_rank_0(options, job, files, configuration, start_s) : run_worker(job);
  if (!options.trace.empty()) {
    job.progress().set_hook([&job] { job.poll_heartbeat(); });
    write_trace(options.trace, job.mesh(), job.progress(), {*job.trace(), job.mesh().rank, job.clock()}, start_s);
    job.progress().set_hook({});
  }
  job.mesh().world.barrier();  // while ranks are still watched: a disk may take its time
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

// "RANK:NAME", test only: on that rank, what begins with NAME is another.
void mismatch(const std::string& text, int this_rank, std::vector<Fact>& facts) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos || text.substr(0, colon) != std::to_string(this_rank)) return;
  for (Fact& fact : facts) {
    if (fact.name.starts_with(text.substr(colon + 1))) fact.value += " (not the same)";
  }
}

// Collective. What the device is, is only known later (Job).
void vote_on_facts(const ServeOptions& options, const Communicator& world, const std::string& effective) {
  std::vector<Fact> facts;
  agreed(world, [&] {
    facts = facts_of_program();
    const std::vector<Fact> more = facts_of_configuration(effective);
    facts.insert(facts.end(), more.begin(), more.end());
  });
  const std::vector<Fact> checkpoints = facts_of_checkpoints(world, options.job.options.models);
  facts.insert(facts.end(), checkpoints.begin(), checkpoints.end());
  mismatch(options.inject_mismatch, world.rank(), facts);
  require_same(world, facts);
}

void serve_watched(ServeOptions& options, Communicator world, const CLI::App& command, Heartbeat& heartbeat) {
  const std::string effective = command.config_to_str(/*default_also=*/true);
  const int rank = world.rank();
  Files files;
  agreed(world, [&] {
    complete(options, rank);
    throw_if_stopped();
  });
  vote_on_facts(options, world, effective);
  agreed(world, [&] {
    if (rank == 0) heartbeat.run_beside([&] { open_output(options, world.size(), files); });
  });
  if (is_complete(world, options, files)) return;
  if (rank == 0) spdlog::info("effective configuration:\n{}", effective);
  Job job(options.job.options, std::move(world));
  agreed(job.mesh().world, [&] {
    throw_if_stopped();
    if (rank == 0) job.run_beside_heartbeat([&] { open_input(options, job, files); });
  });
  options.dry_run ? dry_run(job, files.reader.get(), options.replay)
                  : serve_all(options, job, files, configuration_of(command));
}

// What ranks agree on is a clean end, and why is known: only of others anybody will want to see the records.
void serve(ServeOptions& options, Communicator world, const CLI::App& command) {
  Heartbeat heartbeat(world, heartbeat_options(options));
  if (world.rank() == 0 && !heartbeat.recorder().path().empty()) {
    spdlog::info("each rank's last events, unless it ends in order: {} and so on", heartbeat.recorder().path());
  }
  options.job.options.heartbeat = &heartbeat;
  try {
    serve_watched(options, std::move(world), command, heartbeat);
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

void add_options(CLI::App& app, ServeOptions& o) {
  app.option_defaults()->always_capture_default();
  add_job_options(app, o.job);
  app.add_option("--requests", o.requests, "Requests, JSONL in the OpenAI batch format; - for stdin");
  app.add_option("--output", o.output,
                 "Results, JSONL; appears when complete (OUT.partial until then). A job that ended before "
                 "goes on where it was when the same command is run again");
  app.add_option("--shard", o.shard,
                 "I/N: serve lines I, I+N, I+2N, ... of the requests (the first is line 0); each shard has an output "
                 "of its own, and `computron merge` puts them together");
  app.add_option(
         "--durability", o.durability,
         "Results are safe from the end of the process (process), within a second from that of the node (node), "
         "each before the next (result)")
      ->check(CLI::IsMember({"process", "node", "result"}));
  app.add_option("--disk-wait", o.journal.disk_wait_s, "Seconds to wait for room on a full disk")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drain", o.drain.asked_s, "Seconds that steps may go on when the job is asked to stop")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drain-warned", o.drain.warned_s, "The same when it is only warned, by SIGUSR1")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--watchdog", o.watchdog,
         "Deadlines after which a job that stands still ends, times this: twice 60 s without a sign of a rank, 20 "
         "s of no progress beyond 4 times what a step should take; 0: none, as where a debugger stops a rank")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--recorder", o.recorder,
                 "Folder of each rank's last events, for `computron postmortem`; on every node (default: $TMPDIR or "
                 "/tmp, where those of the last 4 jobs that went down stay for a week). Removed when the job ends in "
                 "order");
  app.add_flag("--core", o.core,
               "Leave core dumps, where the shell's limit allows them: they hold prompts, results and all models");
  app.add_option("--max-crashes", o.journal.max_crashes,
                 "How often the job may go down on one request, or without a result, before it gives up; 0: always")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--take-over", o.journal.take_over, "Take the output from a job that seems to hold it still");
  app.add_flag("--resume-allow-config-change", o.journal.allow_config_change,
               "Go on with results that other settings or checkpoints gave");
  app.add_option("--inject-flip", o.inject_flip)->group("");              // test only: hidden
  app.add_option("--inject-mismatch", o.inject_mismatch)->group("");      // test only: hidden
  app.add_option("--inject-divergence", o.inject_divergence)->group("");  // test only: hidden
  app.add_option("--inject-crash", o.inject_crash)->group("");            // test only: at this line of the input
  app.add_option("--max-batch-tokens", o.job.options.max_batch_tokens, "Tokens of a step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-seqs", o.job.options.max_seqs, "Sequences of a batch")->check(CLI::Range(1, 1 << 16));
  app.add_flag("--share-prefixes", o.job.options.share_prefixes,
               "Requests for a model that begin with the same tokens share the cache of those");
  app.add_option("--seed", o.job.options.seed, "Seed of sampling, for requests without one of their own")
      ->check(whole_number());
  app.add_option("--max-line-bytes", o.max_line_bytes, "Longest request line")
      ->check(whole_number())
      ->check(CLI::PositiveNumber);
  app.add_option("--metrics", o.metrics, "Write the run's figures to this JSON file");
  app.add_option("--trace", o.trace, "Write what every rank did when to this file: Chrome trace events, for Perfetto");
  app.add_option(
      "--status", o.status,
      "Write how the job stands to this file each second: queues, resident models, rates. SIGUSR2 prints it");
  app.add_flag("--replay", o.replay, "Honour the requests' arrival times");
  app.add_flag("--dry-run", o.dry_run, "Load and serve nothing: print the plan, its swaps, bytes and predicted times");
  app.add_flag("--quiet", o.quiet, "No progress and no summary");
  app.add_option("--config", o.config, "Options from a TOML file, by their names here; the command line wins");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto* command = app.add_subcommand("serve", "Serve a batch of requests over many models, under mpirun or srun");
  const auto options = std::make_shared<ServeOptions>();
  add_options(*command, *options);
  command->callback([command, options] {
    if (!options->config.empty()) apply_config(*command, options->config);
    if (!options->core) forbid_core_dumps();
    catch_stop_signals();
    catch_status_signal();
    run_under_mpi(options->quiet, [&](Communicator world) { serve(*options, std::move(world), *command); });
  });
}

}  // namespace computron
