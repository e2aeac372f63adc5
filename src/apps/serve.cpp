// computron serve: the main job, under mpirun or srun.

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

#include "computron/base/digest.h"
#include "computron/base/log.h"
#include "computron/base/size.h"
#include "computron/base/status_signal.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"
#include "computron/checkpoint/reader.h"
#include "computron/comm/agreed.h"
#include "computron/serve/batch_front_end.h"
#include "computron/serve/engine.h"
#include "computron/serve/tokenizers.h"
#include "computron/serve/trace_file.h"
#include "src/apps/commands.h"
#include "src/apps/dry_run.h"
#include "src/apps/job_arguments.h"
#include "src/apps/mpi_command.h"
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
  bool replay = false;
  bool dry_run = false;
  bool quiet = false;
  std::size_t max_line_bytes = ReaderLimits{}.max_line_bytes;
  std::string durability = "node";
  double drain_s = 0.5;
  JournalOptions journal;
  std::optional<RequestId> inject_crash;
};

// What only rank 0 has: the two ends of the flow of requests.
struct Files {
  std::unique_ptr<ResultJournal> journal;  // until the writer has it
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

void complete(ServeOptions& options, int rank) {
  if (options.requests.empty()) throw Error(ExitCode::kUsage, "--requests is required");
  options.job.options.load = !options.dry_run;
  if (options.output.empty() && !options.dry_run) throw Error(ExitCode::kUsage, "--output is required");
  options.job.complete();
  options.job.options.trace = !options.trace.empty();
  options.journal.durability = parse_durability(options.durability);
  options.journal.max_line_bytes = options.max_line_bytes;
  if (!options.inject_flip.empty()) options.job.options.flip = parse_flip(options.inject_flip, rank);
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
std::string digest_of_checkpoint(const std::string& path) {
  CheckpointIndex index = read_checkpoint_index(path);
  index.path.clear();
  return to_hex(digest128(index.serialize()));
}

// What results depend on: a job that is run again must not mix two kinds.
Settings settings_of(const ServeOptions& options, int ranks) {
  const JobOptions& job = options.job.options;
  Settings settings = {{"number of ranks", fmt::format("{}", ranks)},
                       {"--tp", fmt::format("{}", job.tp)},
                       {"--pp", fmt::format("{}", job.pp)},
                       {"--device", job.device},
                       {"--reproducible", fmt::format("{}", job.reproducible)},
                       {"--seed", fmt::format("{}", job.seed)},
                       {"--max-line-bytes", fmt::format("{}", options.max_line_bytes)}};
  for (const RosterEntry& entry : job.models) {
    settings.emplace_back(fmt::format("checkpoint of model {}", entry.id), digest_of_checkpoint(entry.path));
  }
  return settings;
}

void open_output(const ServeOptions& options, int ranks, Files& files) {
  if (options.requests != "-" && access(options.requests.c_str(), R_OK) != 0) {
    throw Error(ExitCode::kNoInput, fmt::format("cannot read requests from {}", options.requests));
  }
  if (options.dry_run) return;
  files.journal =
      std::make_unique<ResultJournal>(options.output, options.requests, settings_of(options, ranks), options.journal);
  check_folder(options.metrics);
  check_folder(options.trace);
  check_folder(options.status);
}

void open_input(const ServeOptions& options, const Job& job, Files& files) {
  const ReaderLimits limits{.max_line_bytes = options.max_line_bytes, .seed = options.job.options.seed};
  const std::string folder =
      options.requests == "-" ? "." : std::filesystem::path(options.requests).parent_path().string();
  std::vector<ServedModel> models = job.served_models();
  load_tokenizers(job, models);
  RequestParser parser(std::move(models), limits, folder);
  if (options.dry_run) {
    files.reader = std::make_unique<RequestReader>(options.requests, std::move(parser), limits);
    return;
  }
  files.journal->begin();
  std::shared_ptr<Spool> spool = options.requests == "-" ? files.journal->open_spool() : nullptr;
  files.writer = std::make_unique<ResultWriter>(
      std::move(files.journal), WriterOptions{.commit_always = options.journal.durability == Durability::kResult});
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
          .version = version_number(),
          .host = host_name()};
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
  Engine engine(job, scheduler, batch, metrics, start, options.drain_s);
  const bool all_done = engine.run();
  RunFacts facts = facts_of(job, now_s() - start);
  facts.started = started;
  note_choices(job, configuration);
  facts.configuration = std::move(configuration);
  if (all_done) files.writer->finish();
  if (!options.metrics.empty()) write_file_atomically(options.metrics, metrics.to_json(facts));
  if (!options.quiet) spdlog::info("{}", metrics.summary(facts));
  return all_done;
}

// The ranks' loops; then their traces, if wanted.
void serve_all(const ServeOptions& options, Job& job, Files& files, const Configuration& configuration) {
  double start_s = 0;
  const bool all_done =
      job.mesh().rank == 0 ? serve_rank_0(options, job, files, configuration, start_s) : run_worker(job);
  if (Trace* trace = job.trace()) {
    write_trace(options.trace, job.mesh(), job.progress(), {*trace, job.mesh().rank, job.clock()}, start_s);
  }
  if (!all_done) throw_stopped();
}

void serve(ServeOptions& options, Communicator world, const CLI::App& command) {
  const int rank = world.rank();
  Files files;
  agreed(world, [&] {
    complete(options, rank);
    throw_if_stopped();
    if (rank == 0) open_output(options, world.size(), files);
  });
  if (rank == 0) spdlog::info("effective configuration:\n{}", command.config_to_str(/*default_also=*/true));
  Job job(options.job.options, std::move(world));
  agreed(job.mesh().world, [&] {
    throw_if_stopped();
    if (rank == 0) open_input(options, job, files);
  });
  options.dry_run ? dry_run(job, files.reader.get(), options.replay) : serve_all(options, job, files, configuration_of(command));
}

void add_options(CLI::App& app, ServeOptions& o) {
  app.option_defaults()->always_capture_default();
  add_job_options(app, o.job);
  app.add_option("--requests", o.requests, "Requests, JSONL in the OpenAI batch format; - for stdin");
  app.add_option("--output", o.output,
                 "Results, JSONL; appears when complete (OUT.partial until then). A job that ended before "
                 "goes on where it was when the same command is run again");
  app.add_option(
         "--durability", o.durability,
         "Results are safe from the end of the process (process), within a second from that of the node (node), "
         "each before the next (result)")
      ->check(CLI::IsMember({"process", "node", "result"}));
  app.add_option("--disk-wait", o.journal.disk_wait_s, "Seconds to wait for room on a full disk")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--drain", o.drain_s, "Seconds that steps may go on when the job is asked to stop")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-crashes", o.journal.max_crashes,
                 "How often the job may go down on one request, or without a result, before it gives up; 0: always")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--take-over", o.journal.take_over, "Take the output from a job that seems to hold it still");
  app.add_flag("--resume-allow-config-change", o.journal.allow_config_change,
               "Go on with results that other settings or checkpoints gave");
  app.add_option("--inject-flip", o.inject_flip)->group("");    // test only: hidden
  app.add_option("--inject-crash", o.inject_crash)->group("");  // test only: at this line of the input
  app.add_option("--max-batch-tokens", o.job.options.max_batch_tokens, "Tokens of a step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-seqs", o.job.options.max_seqs, "Sequences of a batch")->check(CLI::Range(1, 1 << 16));
  app.add_flag("--share-prefixes", o.job.options.share_prefixes,
               "Requests for a model that begin with the same tokens share the cache of those");
  app.add_option("--seed", o.job.options.seed, "Seed of sampling, for requests without one of their own");
  app.add_option("--max-line-bytes", o.max_line_bytes, "Longest request line")->check(CLI::PositiveNumber);
  app.add_option("--metrics", o.metrics, "Write the run's figures to this JSON file");
  app.add_option("--trace", o.trace, "Write what every rank did when to this file: Chrome trace events, for Perfetto");
  app.add_option("--status", o.status,
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
    catch_stop_signals();
    catch_status_signal();
    run_under_mpi(options->quiet, [&](Communicator world) { serve(*options, std::move(world), *command); });
  });
}

}  // namespace computron
