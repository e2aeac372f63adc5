// computron bench swap: what a request costs whose model is not on the devices, beside what it must cost.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>

#include "computron/base/time.h"
#include "computron/comm/agreed.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"
#include "computron/storage/files.h"
#include "src/bench/commands.h"
#include "src/bench/link_probe.h"
#include "src/bench/swap_experiment.h"
#include "src/cli/job_arguments.h"
#include "src/cli/mpi_command.h"

namespace computron {
namespace {

constexpr int kRounds = 3;  // of the link probe, before and after the requests, for each model
constexpr int kMaxBatchTokens = 64;

struct BenchSwapOptions {
  JobArguments job;
  SwapExperimentOptions experiment;
  std::string baseline_file;
  std::string json_file;
  bool csv = false;
  bool quiet = false;
};

std::optional<SwapBaseline> baseline_of(const BenchSwapOptions& options) {
  if (options.baseline_file.empty()) return std::nullopt;
  std::ifstream file(options.baseline_file, std::ios::binary);
  if (!file) throw Error(ExitCode::kNoInput, options.baseline_file + ": cannot be read");
  return read_baseline({std::istreambuf_iterator<char>(file), {}}, options.baseline_file);
}

void complete(BenchSwapOptions& options) {
  options.job.complete();
  JobOptions& job = options.job.options;
  if (job.models.size() < 2) throw Error(ExitCode::kUsage, "bench swap takes two models or more; ids may share a file");
  job.policy = PolicyChoice::kFifo;  // which fetches nothing before it is asked for; balanced would, on a guess
  job.pool_for_tokens = options.experiment.prompt_tokens + 1;
  job.max_batch_tokens = std::max(kMaxBatchTokens, options.experiment.prompt_tokens);
}

// Multiplications of a row in a stage: those of its weights, the embedding being looked up.
double multiplications(const ShardPlan& plan) {
  double count = 0;
  for (const ShardTensor& tensor : plan.tensors) {
    const bool weight = tensor.role == TensorRole::kGemmWeight && !tensor.name.starts_with("embedding.");
    if (weight) count += static_cast<double>(tensor.rows) * tensor.columns;
  }
  return count;
}

std::vector<double> stage_shares(const ModelShape& model) {
  std::vector<double> shares;
  for (const ShardLayout* layout : model.layouts) shares.push_back(multiplications(layout->plan));
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= all;
  return shares;
}

SwapConditions conditions_of(const Job& job, const BenchSwapOptions& options, std::vector<LinkRates> links) {
  SwapConditions conditions;
  conditions.mesh = job.mesh().shape;
  conditions.device = job.device().name();
  conditions.link_gb_per_s = job.options().link_gb_per_s;
  conditions.page_bytes = job.plan().page_bytes;
  conditions.frames = job.group_plan().frames;
  conditions.prompt_tokens = options.experiment.prompt_tokens;
  conditions.links = std::move(links);
  const int stage_ranks = std::min(job.mesh().shape.tp, job.plan().ranks_on_node);
  const bool copies_take_cores = !job.device().own_memory();
  conditions.cores_busy = copies_take_cores && stage_ranks * job.plan().threads >= job.plan().cores_on_node;
  for (const ModelShape& model : job.models().shapes()) {
    conditions.stage_shares.push_back(stage_shares(model));
    for (const ShardLayout* layout : model.layouts) {
      for (PageId page = 0; page < static_cast<PageId>(layout->pages()); ++page) {
        conditions.page_link_bytes = std::max(conditions.page_link_bytes, layout->page_link_bytes(page));
      }
    }
  }
  return conditions;
}

std::vector<SwapSample> run_experiment(Job& job, SwapExperiment& experiment) {
  GroupSchedulers schedulers(job);
  Metrics metrics(job.models().names());
  Engine(job, schedulers.dispatcher(), experiment, metrics, now_s()).run();
  return experiment.samples();
}

void show(const BenchSwapOptions& options, const std::vector<SwapSample>& samples, const SwapConditions& conditions,
          const std::optional<SwapBaseline>& baseline) {
  const SwapSummary summary = metrics_of(samples, conditions, baseline);
  if (!options.json_file.empty()) {
    write_file_atomically(options.json_file, swap_json(summary, conditions, samples));
  }
  fmt::print("{}", options.csv ? swap_csv(summary, conditions) : swap_table(summary, conditions));
}

// Links before, requests, links after: what changes meanwhile shows in the spread.
void bench(BenchSwapOptions& options, Communicator world) {
  const bool reports = world.rank() == 0;
  std::optional<SwapBaseline> baseline;
  agreed(world, [&] {
    complete(options);
    if (reports) baseline = baseline_of(options);
  });
  Job job(options.job.options, std::move(world));
  std::unique_ptr<LinkProbe> probe;
  std::unique_ptr<SwapExperiment> experiment;
  agreed(job.mesh().job, [&] {
    probe = std::make_unique<LinkProbe>(job);
    if (reports) experiment = std::make_unique<SwapExperiment>(job, options.experiment);
  });
  const int rounds = kRounds * static_cast<int>(job.models().size());
  std::vector<SwapSample> samples;
  probe->measure(rounds);
  if (reports) {
    samples = run_experiment(job, *experiment);
  } else {
    run_worker(job);
  }
  probe->measure(rounds);
  const std::vector<LinkRates> links = probe->gather();
  if (reports) show(options, samples, conditions_of(job, options, links), baseline);
}

void add_options(CLI::App& app, BenchSwapOptions& o) {
  app.option_defaults()->always_capture_default();
  o.job.model_pages = "private";  // copies of one file stand for different models
  add_job_options(app, o.job);
  app.remove_option(app.get_option("--policy"));  // fifo
  app.add_option("--requests", o.experiment.requests, "Swapped requests to measure; each is sent again while resident")
      ->check(CLI::Range(1, 100000));
  app.add_option("--warmup", o.experiment.warmup, "Requests before them")->check(CLI::Range(0, 100000));
  app.add_option("--prompt-tokens", o.experiment.prompt_tokens, "Tokens of a prompt")->check(CLI::Range(1, 1 << 20));
  app.add_option("--baseline", o.baseline_file, "What --json wrote for one rank: gives the speed-up");
  app.add_option("--json", o.json_file, "Write every metric and request to this file");
  app.add_flag("--csv", o.csv, "Print a line of comma-separated metrics instead of a table");
  app.add_flag("--quiet", o.quiet, "No log");
}

}  // namespace

void add_bench_swap(CLI::App& app) {
  auto* command = app.add_subcommand("swap", "Requests for models in turn with room for one, under mpirun or srun");
  const auto options = std::make_shared<BenchSwapOptions>();
  command->footer(
      "load      the copy stream's busy time on the slowest rank\n"
      "exec      the same request once more, its model resident\n"
      "response  arrival to completion\n"
      "bound     max(compute, transfer of a stage + compute of the later ones) + one page, from exec, the bytes moved\n"
      "          and plain copies on all ranks at once, measured before and after the requests\n"
      "limit     1.05 x the bound without its page, + one page + 3 ms\n"
      "skew      fastest over slowest rank of a stage, less one\n"
      "fetch     pages through the swapper with nothing computing, of plain copies of the same bytes beside them\n"
      "Without --device-memory the pool is the largest model, the cache of a request and one frame.");
  add_options(*command, *options);
  command->callback(
      [options] { run_under_mpi(options->quiet, [&](Communicator world) { bench(*options, std::move(world)); }); });
}

}  // namespace computron
