// Groups of ranks on emulated links and processors, and the same requests in virtual time (perf/README.md, "Groups" and
// "Two models"): a line of CSV, under its heads, on stdout. Under mpirun:
//
//   perf_groups MODELS MESH --link-gbps R --gflops R (--known N | --rates LIST) ...       (--help lists all)
//
// A request is a pass: prompts of equal length, one to a pass, one token. Real and virtual processors have the same
// rate and the schedulers know it, as they know the links'.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <queue>

#include "computron/comm/agreed.h"
#include "computron/plan/virtual_run.h"
#include "computron/serve/engine.h"
#include "computron/serve/group_schedulers.h"
#include "computron/storage/files.h"
#include "computron/workload/workload.h"
#include "src/bench/workload_experiment.h"
#include "src/bench/workload_metrics.h"
#include "src/cli/job_arguments.h"
#include "src/cli/mpi_command.h"
#include "tests/support/emulated_processor.h"

using namespace computron;

namespace {

constexpr double kLatency_s = 50e-6;  // of a step to a rank, and of its report back
constexpr double kDoubt = 0.01;       // of what a pass takes: virtual time is also run with so much less and more

struct Options {
  JobArguments job;
  double gflops = 0;    // of each rank's processor
  double overhead = 1;  // passes take so many times what that says, because ranks work together
  int known = 0;        // requests for each model, all there from the start; 0: they arrive
  std::vector<double> rates;
  WorkloadOptions workload;
  int seeds = 1;                     // of virtual time alone: so many runs, each with a seed of its own, are one
  bool only_virtual = false;         // no rank computes anything
  std::string latencies;             // a file; empty: not wanted
  std::vector<double> virtual_gbps;  // then: links of these rates, a line each
};

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double process_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// --- What a rank does -------------------------------------------------------------------------------------------

// What a rank tells rank 0 in the end; as it lies in memory.
struct RankFigures {
  double busy_s = 0;      // passes, by the profile
  double pass_cpu_s = 0;  // that they really took, but for polling while they were held or waited for pages
  double cpu_s = 0;       // of the process while the service lasted, all polling included
  double pass_ratio = 0;  // median of what a pass took ÷ what it was to take
  double exposed_s = 0;
};

// Emulated processors, and what the ranks make of them.
class Hooks : public ServeHooks {
 public:
  explicit Hooks(double flops_per_s) : profile_(test::profile_of_rate(flops_per_s)) {}

  PageSourceWrapper page_wrapper(Progress& progress) override {
    processor_ = std::make_unique<test::EmulatedProcessor>(profile_, progress);
    return [this, wrap = processor_->wrapper()](const Step& step, const ShardLayout& layout, Stream& compute,
                                                PageSource& pages) {
      busy_before_s_ = processor_->busy_s();
      cpu_before_s_ = computing_cpu_s();
      return wrap(step, layout, compute, pages);
    };
  }
  void executed(int /*rank*/, Report& report) override {
    figures_.exposed_s = report.exposed_s;
    if (report.compute_s <= 0) return;
    figures_.pass_cpu_s += computing_cpu_s() - cpu_before_s_;
    ratios_.push_back(report.compute_s / (processor_->busy_s() - busy_before_s_));
  }

  void begin() { cpu_begin_s_ = process_cpu_s(); }
  RankFigures end() {
    figures_.cpu_s = process_cpu_s() - cpu_begin_s_;
    figures_.busy_s = processor_->busy_s();
    figures_.pass_ratio = median(ratios_);
    return figures_;
  }

 private:
  double computing_cpu_s() const { return test::EmulatedProcessor::thread_cpu_s() - processor_->waiting_cpu_s(); }

  test::PassProfile profile_;
  std::unique_ptr<test::EmulatedProcessor> processor_;
  double busy_before_s_ = 0, cpu_before_s_ = 0, cpu_begin_s_ = 0;
  std::vector<double> ratios_;
  RankFigures figures_;
};

// Collective: every rank's.
std::vector<RankFigures> gathered(const Communicator& ranks, const RankFigures& own) {
  std::vector<RankFigures> figures;
  for (const std::vector<std::byte>& bytes : ranks.all_gather(std::as_bytes(std::span(&own, 1)))) {
    std::memcpy(&figures.emplace_back(), bytes.data(), sizeof own);
  }
  return figures;
}

// --- Requests -----------------------------------------------------------------------------------------------------

// All there from the start, the models in turn.
std::vector<Request> known_requests(const Options& options) {
  std::vector<Request> requests;
  for (int i = 0; i < options.known; ++i) {
    for (ModelId m = 0; m < options.job.options.models.size(); ++m) {
      Request& request = requests.emplace_back();
      request.id = requests.size() - 1;
      request.model = m;
      request.prompt.assign(static_cast<std::size_t>(options.workload.prompt_tokens), kFirstPromptToken);
      request.max_tokens = 1;
      request.ignore_eos = true;
    }
  }
  return requests;
}

std::vector<Request> requests_of(const Options& options, std::uint64_t seed) {
  if (options.known > 0) return known_requests(options);
  WorkloadOptions workload = options.workload;
  workload.seed = seed;
  std::vector<Request> requests = make_workload(workload);
  if (requests.empty()) throw Error(ExitCode::kUsage, "no request arrives in that time: a longer --duration or --seed");
  return requests;
}

// --- Virtual time -------------------------------------------------------------------------------------------------

// [model][stage]
using Layouts = std::vector<std::vector<const ShardLayout*>>;

Layouts layouts_of(const Job& job, int group) {
  Layouts layouts;
  for (const ModelShape& shape : job.models().shapes(group)) layouts.push_back(shape.layouts);
  return layouts;
}

WorkloadOutcome run_in_virtual_time(const Job& job, const CostOptions& costs, const std::vector<Request>& requests) {
  GroupSchedulers schedulers(job, costs);
  std::deque<VirtualMesh> ranks;
  std::vector<VirtualMesh*> meshes;
  for (const RankGroup& group : job.mesh().groups) {
    const Layouts layouts = layouts_of(job, group.index);
    meshes.push_back(&ranks.emplace_back(layouts, CostModel(layouts, costs), kLatency_s));
  }
  for (const Request& request : requests) schedulers.dispatcher().submit(request);
  schedulers.dispatcher().close_input();
  const VirtualRun run = run_virtually(schedulers.dispatcher(), meshes);
  WorkloadOutcome outcome{.latencies_s = latencies_of(run.completions), .swaps = run.swaps, .wall_s = run.end_s};
  for (const RankGroup& group : job.mesh().groups) {
    for (int stage = 0; stage < group.shape.pp; ++stage) {
      outcome.bytes += meshes[static_cast<std::size_t>(group.index)]->bytes(static_cast<std::size_t>(stage)) *
                       static_cast<std::size_t>(group.shape.tp);
    }
  }
  return outcome;
}

// --- Bounds -------------------------------------------------------------------------------------------------------

// A model's on each stage of the first group, in seconds.
struct StageBound {
  double transfer_s = 0, pass_s = 0;
};

std::vector<StageBound> stages_of(const Job& job, const CostOptions& costs, int rows) {
  const Layouts layouts = layouts_of(job, 0);
  const CostModel model(layouts, costs);
  std::vector<StageBound> stages;
  for (std::size_t s = 0; s < layouts.front().size(); ++s) {
    stages.push_back({model.transfer_s(s, layouts.front()[s]->total_link_bytes()), model.stage_pass_s(0, s, rows)});
  }
  return stages;
}

double latency_s(const std::vector<StageBound>& stages) {
  double sum_s = 0;
  for (const StageBound& stage : stages) sum_s += stage.pass_s;
  return sum_s;
}

double bottleneck_s(const std::vector<StageBound>& stages) {
  return std::ranges::max(stages, {}, &StageBound::pass_s).pass_s;
}

// The earliest end of equal shares of whole models, `passes` each: no stage can end its first pass before the model's
// pages are there, and none its passes of the model that comes last before that is.
double known_bound_s(const std::vector<StageBound>& stages, int models, int passes) {
  double bound_s = 0, before_s = 0, behind_s = latency_s(stages);
  for (const StageBound& stage : stages) {
    before_s += stage.pass_s;
    behind_s -= stage.pass_s;
    const double first_s = std::max(stage.transfer_s, before_s);
    bound_s = std::max({bound_s, first_s + (models * passes - 1) * stage.pass_s + behind_s,
                        models * stage.transfer_s + (passes - 1) * stage.pass_s + behind_s});
  }
  return bound_s;
}

// The mean latency of a queue before as many equal servers as there are groups, each with every model resident.
double queue_bound_s(const std::vector<StageBound>& stages, std::size_t groups, const std::vector<Request>& requests) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_s(std::greater<>(),
                                                                          std::vector<double>(groups, 0.0));
  double sum_s = 0;
  for (const Request& request : requests) {
    const double begin_s = std::max(request.arrival_s, free_s.top());
    free_s.pop();
    free_s.push(begin_s + bottleneck_s(stages));
    sum_s += begin_s + latency_s(stages) - request.arrival_s;
  }
  return sum_s / static_cast<double>(requests.size());
}

double bound_s(const Options& options, const Job& job, const std::vector<StageBound>& stages,
               const std::vector<Request>& requests) {
  const std::size_t groups = job.groups().size();
  if (options.known == 0) return queue_bound_s(stages, groups, requests);
  return known_bound_s(stages, static_cast<int>((job.models().size() + groups - 1) / groups), options.known);
}

// --- A line of the output -----------------------------------------------------------------------------------------

constexpr const char* kHeads =
    "groups,tp,pp,policy,known,cv,seed,requests,gbps,request_s,transfer_s,bound_s,real_s,real_p99_s,real_wall_s,"
    "real_swaps,real_bytes,pass_ratio,pass_cpu,cpu,exposed_s,virtual_s,virtual_low_s,virtual_high_s,virtual_p99_s,"
    "virtual_wall_s,virtual_swaps,virtual_bytes";

// What counts: the last completion where all is known, else the mean latency.
double result_s(const Options& options, const WorkloadOutcome& outcome) {
  return options.known > 0 ? outcome.wall_s : summary_of(outcome.latencies_s).mean_s;
}

struct Line {
  double gbps = 0;
  std::uint64_t seed = 0;
  std::size_t requests = 0;
  std::vector<StageBound> stages;  // by the nominal rates
  double bound_s = 0;
  WorkloadOutcome real;  // without latencies: there was none
  std::vector<RankFigures> ranks;
  WorkloadOutcome virtual_time;
  double virtual_s = 0, virtual_low_s = 0, virtual_high_s = 0;
};

double most(const std::vector<RankFigures>& ranks, const auto& figure) {
  double most = 0;
  for (const RankFigures& rank : ranks) most = std::max(most, figure(rank));
  return most;
}

double pass_ratio(const std::vector<RankFigures>& ranks) {
  std::vector<double> ratios;
  for (const RankFigures& rank : ranks) {
    if (rank.busy_s > 0) ratios.push_back(rank.pass_ratio);
  }
  return median(ratios);
}

std::string to_csv(const Options& options, const Job& job, const Line& line) {
  const MeshShape shape = job.groups().front().shape;
  double transfer_s = 0;
  for (const StageBound& stage : line.stages) transfer_s = std::max(transfer_s, stage.transfer_s);
  const bool real = !line.real.latencies_s.empty();
  const LatencySummary none, latency = real ? summary_of(line.real.latencies_s) : none;
  return fmt::format(
      "{},{},{},{},{},{},{},{},{:.9g},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{:.6f},{},{},{:.5f},{:.4f},{:.4f},{:.4f},{:."
      "6f},"
      "{:.6f},{:.6f},{:.6f},{:.6f},{},{}\n",
      job.groups().size(), shape.tp, shape.pp, name_of(job.options().policy), options.known, options.workload.cv,
      line.seed, line.requests, line.gbps, latency_s(line.stages), transfer_s, line.bound_s,
      real ? result_s(options, line.real) : 0, latency.p99_s, line.real.wall_s, line.real.swaps, line.real.bytes,
      pass_ratio(line.ranks),
      most(line.ranks, [](const RankFigures& rank) { return rank.busy_s > 0 ? rank.pass_cpu_s / rank.busy_s : 0; }),
      real ? most(line.ranks, [&](const RankFigures& rank) { return rank.cpu_s / line.real.wall_s; }) : 0,
      most(line.ranks, [](const RankFigures& rank) { return rank.exposed_s; }), line.virtual_s, line.virtual_low_s,
      line.virtual_high_s, summary_of(line.virtual_time.latencies_s).p99_s, line.virtual_time.wall_s,
      line.virtual_time.swaps, line.virtual_time.bytes);
}

// --- Runs ---------------------------------------------------------------------------------------------------------

CostOptions costs_of(const Options& options, double gbps, double pass_ratio = 1) {
  return test::costs_of_rate(1e9 * options.gflops / (options.overhead * pass_ratio), 1e9 * gbps);
}

std::vector<MetricsGroup> metrics_groups(const Job& job) {
  std::vector<MetricsGroup> groups;
  for (const RankGroup& group : job.mesh().groups) {
    groups.push_back({group.shape.tp, group.shape.pp, group.first_rank, job.models().in_group(group.index)});
  }
  return groups;
}

// Of the loop of rank 0.
WorkloadOutcome run_really(Job& job, const CostOptions& costs, const std::vector<Request>& requests) {
  GroupSchedulers schedulers(job, costs);
  WorkloadExperiment experiment(requests);
  Metrics metrics(job.models().names(), metrics_groups(job));
  Engine(job, schedulers.dispatcher(), experiment, metrics, now_s()).run();
  const SwapMetrics swaps = metrics.counts().swaps;
  return {.latencies_s = latencies_of(experiment.completions()),
          .swaps = swaps.count,
          .bytes = swaps.link_bytes,
          .wall_s = experiment.completions().back().finished_s};
}

Line line_of(const Options& options, const Job& job, double gbps, std::uint64_t seed,
             const std::vector<Request>& requests) {
  Line line;
  line.gbps = gbps;
  line.seed = seed;
  line.requests = requests.size();
  line.stages = stages_of(job, costs_of(options, gbps), options.workload.prompt_tokens);
  line.bound_s = bound_s(options, job, line.stages, requests);
  return line;
}

// Collective.
void run_in_both_times(const Options& options, Job& job, Hooks& hooks) {
  const double gbps = job.options().link_gb_per_s;
  const std::vector<Request> requests = requests_of(options, options.workload.seed);
  Line line;
  hooks.begin();
  if (job.mesh().schedules()) {
    line = line_of(options, job, gbps, options.workload.seed, requests);
    line.real = run_really(job, costs_of(options, gbps), requests);
  } else {
    run_worker(job);
  }
  line.ranks = gathered(job.mesh().job, hooks.end());
  if (!job.mesh().schedules()) return;
  const auto predicted_s = [&](double factor, WorkloadOutcome* outcome) {
    const CostOptions costs = costs_of(options, gbps, factor * pass_ratio(line.ranks));
    WorkloadOutcome run = run_in_virtual_time(job, costs, requests);
    const double seconds = result_s(options, run);
    if (outcome != nullptr) *outcome = std::move(run);
    return seconds;
  };
  line.virtual_s = predicted_s(1, &line.virtual_time);
  line.virtual_low_s = predicted_s(1 - kDoubt, nullptr);
  line.virtual_high_s = predicted_s(1 + kDoubt, nullptr);
  fmt::print("{}\n{}", kHeads, to_csv(options, job, line));
  if (options.latencies.empty()) return;
  std::string lines = "model,arrival_s,real_s,virtual_s\n";
  for (std::size_t i = 0; i < requests.size(); ++i) {
    lines += fmt::format("{},{:.6f},{:.6f},{:.6f}\n", requests[i].model, requests[i].arrival_s,
                         line.real.latencies_s[i], line.virtual_time.latencies_s[i]);
  }
  write_file_atomically(options.latencies, lines);
}

// On rank 0: means over the seeds.
void run_in_virtual_time_alone(const Options& options, const Job& job) {
  fmt::print("{}\n", kHeads);
  for (const double gbps : options.virtual_gbps) {
    Line line;
    for (int i = 0; i < options.seeds; ++i) {
      const std::uint64_t seed = options.workload.seed + static_cast<std::uint64_t>(i);
      const std::vector<Request> requests = requests_of(options, seed);
      const Line of_seed = line_of(options, job, gbps, seed, requests);
      if (i == 0) line.stages = of_seed.stages;
      line.requests += requests.size();
      line.bound_s += of_seed.bound_s / options.seeds;
      line.virtual_time = run_in_virtual_time(job, costs_of(options, gbps), requests);
      line.virtual_s += result_s(options, line.virtual_time) / options.seeds;
    }
    line.gbps = gbps;
    line.seed = options.workload.seed;
    fmt::print("{}", to_csv(options, job, line));
  }
}

void complete(Options& options) {
  options.job.complete();
  JobOptions& job = options.job.options;
  job.max_batch_tokens = options.workload.prompt_tokens;  // a request a pass
  job.load = !options.only_virtual;
  job.share_model_pages = false;  // copies of one file stand for different models
  options.workload.max_tokens = 1;
  if ((options.known > 0) == !options.rates.empty()) {
    throw Error(ExitCode::kUsage, "give either --known or --rates");
  }
  if (options.only_virtual == options.virtual_gbps.empty()) {
    throw Error(ExitCode::kUsage, "give --virtual-gbps with --only-virtual, and only then");
  }
  if (!options.only_virtual && job.link_gb_per_s <= 0) throw Error(ExitCode::kUsage, "--link-gbps is missing");
  std::vector<std::string> ids;
  for (const ModelEntry& entry : job.models) ids.push_back(entry.id);
  if (options.known == 0) options.workload.models = join_workload_models(ids, options.rates);
}

void run(Options& options, Communicator world) {
  agreed(world, [&] { complete(options); });
  Hooks hooks(1e9 * options.gflops / options.overhead);
  Job job(options.job.options, std::move(world), {}, hooks);
  agreed(job.mesh().job, [&] {
    for (const ServedModel& model : job.models().served()) {
      options.workload.vocab = std::min(options.workload.vocab, model.config.vocab);
    }
    if (options.only_virtual && job.mesh().schedules()) run_in_virtual_time_alone(options, job);
  });
  if (!options.only_virtual) run_in_both_times(options, job, hooks);
}

void add_options(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  add_job_options(app, o.job);
  add_group_options(app, o.job);
  app.add_option("--gflops", o.gflops, "Operations a second of each rank's processor, emulated")
      ->check(CLI::PositiveNumber)
      ->required();
  app.add_option("--overhead", o.overhead, "What passes take ÷ what --gflops says")->check(CLI::PositiveNumber);
  app.add_option("--known", o.known, "Requests for each model, all there from the start")->check(CLI::PositiveNumber);
  app.add_option("--rates", o.rates, "Requests a second of each model in turn: 10,1,1")->delimiter(',');
  app.add_option("--cv", o.workload.cv, "Coefficient of variation of the times between arrivals; 1 is Poisson");
  app.add_option("--duration", o.workload.duration_s, "Seconds during which requests arrive");
  app.add_option("--seed", o.workload.seed, "Of the arrivals");
  app.add_option("--max-seqs", o.job.options.max_seqs, "Requests of a model that run together")
      ->check(CLI::Range(1, 4096));
  app.add_option("--prompt-tokens", o.workload.prompt_tokens, "Tokens of a prompt, and rows of a pass");
  app.add_option("--latencies", o.latencies, "Write every request's latency to this CSV file");
  app.add_flag("--only-virtual", o.only_virtual, "Virtual time alone");
  app.add_option("--virtual-gbps", o.virtual_gbps, "Rates of links, a line each")->delimiter(',');
  app.add_option("--seeds", o.seeds, "Runs in virtual time, whose mean is shown")->check(CLI::PositiveNumber);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Groups of ranks on emulated links and processors.", "perf_groups");
  Options options;
  add_options(app, options);
  app.callback([&] { run_under_mpi(/*quiet=*/true, [&](Communicator world) { run(options, std::move(world)); }); });
  CLI11_PARSE(app, argc, argv);
  return 0;
}
