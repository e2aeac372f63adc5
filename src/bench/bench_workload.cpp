// computron bench workload: a Gamma workload served in real time, and the same requests in virtual time with the costs
// that the real run learned.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/plan/virtual_run.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"
#include "computron/storage/files.h"
#include "src/bench/commands.h"
#include "src/bench/workload_experiment.h"
#include "src/bench/workload_metrics.h"
#include "src/cli/job_arguments.h"
#include "src/cli/mpi_command.h"
#include "src/cli/option_checks.h"

namespace computron {
namespace {

constexpr double kLatency_s = 50e-6;  // of a step to a rank, and of its report back
constexpr int kMaxBatchTokens = 64;   // at least

struct BenchWorkloadOptions {
  JobArguments job;
  std::vector<double> rates;
  WorkloadOptions workload;
  std::vector<std::string> policies = {"fifo", "balanced"};
  int resident = 0;
  std::string json_file;
  bool csv = false;
  bool quiet = false;
};

void complete(BenchWorkloadOptions& options) {
  for (const std::string& policy : options.policies) parse_policy(policy);
  options.job.complete();
  JobOptions& job = options.job.options;
  std::vector<std::string> ids;
  for (const ModelEntry& entry : job.models) ids.push_back(entry.id);
  options.workload.models = join_workload_models(ids, options.rates);
  if (options.resident > static_cast<int>(ids.size())) {
    throw Error(ExitCode::kUsage, fmt::format("--resident {} of {} models", options.resident, ids.size()));
  }
  const int tokens = options.workload.prompt_tokens + options.workload.max_tokens;
  job.pool_models = options.resident;
  job.pool_for_tokens = options.resident > 0 ? job.max_seqs * round_up(tokens, KvGeometry::kBlockTokens) : 0;
  job.max_batch_tokens = std::max(kMaxBatchTokens, job.max_seqs * options.workload.prompt_tokens);
}

// Prompts of tokens that every model knows.
std::vector<Request> requests_for(const Job& job, WorkloadOptions& options) {
  const std::vector<ServedModel> models = job.models().served();
  options.vocab = models.front().config.vocab;
  for (const ServedModel& model : models) {
    if (model.config.pools()) {
      throw Error(ExitCode::kUsage, fmt::format("model {} is an encoder or embedder: it generates nothing", model.id));
    }
    options.vocab = std::min(options.vocab, model.config.vocab);
    if (options.prompt_tokens + options.max_tokens <= model.config.max_positions) continue;
    throw Error(ExitCode::kUsage,
                fmt::format("--prompt-tokens {} and --max-tokens {}: model {} takes {} positions",
                            options.prompt_tokens, options.max_tokens, model.id, model.config.max_positions));
  }
  std::vector<Request> requests = make_workload(options);
  if (requests.empty()) throw Error(ExitCode::kUsage, "no request arrives in that time: a longer --duration or --seed");
  return requests;
}

std::vector<std::vector<const ShardLayout*>> layouts_of(const Job& job) {
  std::vector<std::vector<const ShardLayout*>> layouts;
  for (const ModelShape& shape : job.models().shapes()) layouts.push_back(shape.layouts);
  return layouts;
}

// Leaves the dispatcher as it ended, for what its scheduler learned.
WorkloadOutcome run_really(Job& job, Dispatcher& dispatcher, const std::vector<Request>& requests) {
  WorkloadExperiment experiment(requests);
  Metrics metrics(job.models().names());
  Engine(job, dispatcher, experiment, metrics, now_s()).run();
  WorkloadOutcome outcome{.latencies_s = latencies_of(experiment.completions()),
                          .bytes = experiment.link_bytes(),
                          .link_busy_s = experiment.link_busy_s(),
                          .wall_s = experiment.completions().back().finished_s};
  for (ModelId m = 0; m < job.models().size(); ++m) outcome.swaps += metrics.model(m).swaps.count;
  return outcome;
}

WorkloadOutcome run_in_virtual_time(const Job& job, const CostModel& costs, const std::vector<Request>& requests) {
  Scheduler scheduler = make_scheduler(job);
  for (const Request& request : requests) scheduler.submit(request);
  scheduler.close_input();
  VirtualMesh mesh(layouts_of(job), costs, kLatency_s);
  const VirtualRun run = run_virtually(scheduler, mesh);
  WorkloadOutcome outcome{.latencies_s = latencies_of(run.completions), .swaps = run.swaps, .wall_s = run.end_s};
  const MeshShape shape = job.mesh().shape;
  for (std::size_t stage = 0; stage < static_cast<std::size_t>(shape.pp); ++stage) {
    outcome.bytes += mesh.bytes(stage) * static_cast<std::size_t>(shape.tp);
    outcome.link_busy_s = std::max(outcome.link_busy_s, mesh.busy_s(stage));
  }
  return outcome;
}

LearnedCosts learned_of(const CostModel& costs, const Job& job, const WorkloadOptions& workload) {
  const int batch = std::min(job.options().max_seqs * workload.prompt_tokens, job.plan().max_batch_tokens);
  return {costs.pass_s(0, workload.prompt_tokens), costs.pass_s(0, batch), costs.swap_s(0)};
}

PolicyComparison compare(Job& job, const WorkloadOptions& workload, const std::vector<Request>& requests) {
  PolicyComparison run{
      .policy = std::string(name_of(job.options().policy)), .real = {}, .virtual_time = {}, .costs = {}};
  GroupSchedulers schedulers(job);
  run.real = run_really(job, schedulers.dispatcher(), requests);
  const CostModel& costs = schedulers.dispatcher().scheduler(0).costs();
  run.virtual_time = run_in_virtual_time(job, costs, requests);
  run.costs = learned_of(costs, job, workload);
  return run;
}

WorkloadConditions conditions_of(const Job& job, const BenchWorkloadOptions& options) {
  return {.mesh = job.mesh().shape,
          .device = job.device().name(),
          .link_gb_per_s = job.options().link_gb_per_s,
          .page_bytes = job.plan().page_bytes,
          .frames = job.group_plan().frames,
          .resident = options.resident,
          .max_seqs = job.options().max_seqs,
          .workload = options.workload};
}

void show(const BenchWorkloadOptions& options, const std::vector<PolicyComparison>& runs,
          const WorkloadConditions& conditions) {
  if (!options.json_file.empty()) write_file_atomically(options.json_file, workload_json(runs, conditions));
  fmt::print("{}", options.csv ? workload_csv(runs, conditions) : workload_table(runs, conditions));
}

// A job a policy: each begins with nothing resident.
void bench(BenchWorkloadOptions& options, Communicator world) {
  agreed(world, [&] { complete(options); });
  const bool reports = world.rank() == 0;
  std::vector<PolicyComparison> runs;
  WorkloadConditions conditions;
  for (const std::string& policy : options.policies) {
    options.job.options.policy = parse_policy(policy);
    Job job(options.job.options, world.split(/*color=*/0, world.rank()));
    std::vector<Request> requests;
    agreed(world, [&] { requests = requests_for(job, options.workload); });
    if (reports) {
      runs.push_back(compare(job, options.workload, requests));
      conditions = conditions_of(job, options);
    } else {
      run_worker(job);
    }
  }
  if (reports) show(options, runs, conditions);
}

void add_options(CLI::App& app, BenchWorkloadOptions& o) {
  app.option_defaults()->always_capture_default();
  o.job.model_pages = "private";  // copies of one file stand for different models
  add_job_options(app, o.job);
  app.remove_option(app.get_option("--policy"));
  app.add_option("--policy", o.policies, "Policies, one run each: fifo,balanced,throughput")->delimiter(',');
  app.add_option("--rates", o.rates, "Requests a second of each model in turn: 10,1,1")->delimiter(',')->required();
  app.add_option("--cv", o.workload.cv, "Coefficient of variation of the times between arrivals; 1 is Poisson");
  app.add_option("--duration", o.workload.duration_s, "Seconds during which requests arrive");
  app.add_option("--seed", o.workload.seed, "Of the arrivals; the same seed, the same requests")->check(whole_number());
  app.add_option("--prompt-tokens", o.workload.prompt_tokens, "Tokens of a prompt");
  app.add_option("--max-tokens", o.workload.max_tokens, "Tokens to generate; all of them are");
  app.add_option("--max-seqs", o.job.options.max_seqs, "Requests of a model that run together")
      ->check(CLI::Range(1, 4096));
  app.add_option("--resident", o.resident,
                 "Models that the pool holds with their caches; 0: --device-memory or default")
      ->check(CLI::NonNegativeNumber)
      ->excludes(app.get_option("--device-memory"));
  app.add_option("--json", o.json_file, "Write every metric and latency to this file");
  app.add_flag("--csv", o.csv, "Print comma-separated metrics instead of a table, a line a policy");
  app.add_flag("--quiet", o.quiet, "No log");
}

}  // namespace

void add_bench_workload(CLI::App& app) {
  auto* command = app.add_subcommand("workload", "Gamma arrivals in real and in virtual time, under mpirun or srun");
  const auto options = std::make_shared<BenchWorkloadOptions>();
  command->footer(
      "real      the job serves the requests as they arrive\n"
      "virtual   the same requests, pool and policy, with passes and transfers taking what the real run's scheduler\n"
      "          has learned that they take: what is left between the two is what the plan does not know\n"
      "swaps     models of which fetching began, since they last ran\n"
      "link %    time in which the busiest link copied");
  add_options(*command, *options);
  command->callback(
      [options] { run_under_mpi(options->quiet, [&](Communicator world) { bench(*options, std::move(world)); }); });
}

}  // namespace computron
