// Computron's grid of Gamma workloads in virtual time, fifo beside balanced (perf/README.md, "Workloads"): a table
// on stdout. Exit code 1 when a target is missed.
//
//   perf_workloads [SEEDS]        10 unless given
#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "computron/plan/virtual_run.h"
#include "computron/workload/workload.h"
#include "perf/even_layout.h"
#include "src/bench/latency_summary.h"

using namespace computron;

namespace {

// Their machine, by what they measured on it: OPT-13B, tp 2 x pp 2.
constexpr double kSwap_s = 0.423, kExec_s = 0.057;  // of a model; of a batch, whatever its size
constexpr std::size_t kPageBytes = std::size_t{64} << 20;
constexpr int kPages = 90;  // of a stage's shard: 24 GB over four ranks
constexpr int kStages = 2;
constexpr int kCacheFrames = 2;       // a resident model: 16 tokens of 32 sequences take one and a half
constexpr double kLatency_s = 50e-6;  // of a step to a rank, and of its report back
constexpr double kDuration_s = 30;

constexpr double kSwapsDominate = 0.7;  // fifo's busiest link was busy for so much of the time
constexpr double kMeanLimit = 1.05, kP99Limit = 1.1, kGain = 1.5;

struct Cell {
  std::vector<double> rates;  // requests a second, of each model
  double cv = 1;
  int resident = 0;  // models that the pool holds
  int max_seqs = 0;
  double published_s = 0;  // Computron's mean latency
};

std::vector<Cell> grid() {
  struct Row {
    std::vector<double> rates;
    int resident, max_seqs;
    std::array<double, 3> published_s;  // cv 0.25, 1, 4
  };
  const std::vector<Row> rows = {{{1, 1, 1}, 2, 8, {1.262, 0.606, 0.518}},
                                 {{10, 1, 1}, 2, 8, {1.172, 0.886, 0.551}},
                                 {{10, 10, 1}, 2, 8, {1.014, 0.716, 0.374}},
                                 {{1, 1, 1, 1, 1, 1}, 4, 32, {1.847, 1.282, 0.174}},
                                 {{10, 10, 1, 1, 1, 1}, 4, 32, {2.017, 1.413, 0.229}},
                                 {{10, 10, 10, 10, 1, 1}, 4, 32, {1.535, 1.470, 0.312}}};
  constexpr std::array kCvs = {0.25, 1.0, 4.0};
  std::vector<Cell> cells;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < kCvs.size(); ++i) {
      cells.push_back({row.rates, kCvs[i], row.resident, row.max_seqs, row.published_s[i]});
    }
  }
  return cells;
}

CostOptions their_machine() {
  constexpr double kShardBytes = kPages * static_cast<double>(kPageBytes), kStep_s = 5e-4;
  return {.link_bytes_per_s = kShardBytes / kSwap_s,
          .memory_bytes_per_s = kShardBytes / (kExec_s / kStages - kStep_s),
          .flops_per_s = 1e15,
          .step_s = kStep_s};
}

struct Outcome {
  double mean_s = 0, p99_s = 0, swaps = 0;
  double link_use = 0;  // of the busiest link: time busy ÷ time
  void add(const Outcome& other, double weight) {
    mean_s += weight * other.mean_s;
    p99_s += weight * other.p99_s;
    swaps += weight * other.swaps;
    link_use += weight * other.link_use;
  }
};

std::vector<Request> requests_of(const Cell& cell, int seed) {
  WorkloadOptions options;
  options.cv = cell.cv;
  options.duration_s = kDuration_s;
  options.seed = static_cast<std::uint64_t>(seed);
  for (const double rate : cell.rates) options.models.push_back({fmt::format("m{}", options.models.size()), rate});
  return make_workload(options);
}

Outcome outcome_of(const VirtualRun& run, const VirtualMesh& mesh) {
  std::vector<double> latencies_s;
  for (const Completion& completion : run.completions) {
    latencies_s.push_back(completion.finished_s - completion.arrival_s);
  }
  const LatencySummary latency = summary_of(std::move(latencies_s));
  Outcome outcome{latency.mean_s, latency.p99_s, static_cast<double>(run.swaps), 0};
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    outcome.link_use = std::max(outcome.link_use, mesh.busy_s(stage) / run.end_s);
  }
  return outcome;
}

Outcome serve(const Cell& cell, const std::string& policy, int seed) {
  const ShardLayout layout =  // pages without bytes; OPT-13B's cache
      even_layout(kPages, kPageBytes, /*layers=*/20, /*kv_heads=*/20);
  const std::vector<const ShardLayout*> stages(kStages, &layout);
  std::vector<ModelShape> models;
  std::vector<std::string> names;
  for (std::size_t m = 0; m < cell.rates.size(); ++m) {
    models.push_back({.layouts = stages, .caches = {kStages, KvGeometry::make(layout)}, .eos_tokens = {}});
    names.push_back(fmt::format("m{}", m));
  }
  const SchedulerOptions options{.frames = cell.resident * (kPages + kCacheFrames),
                                 .max_seqs = cell.max_seqs,
                                 .steps_in_flight = kStages + 1,
                                 .costs = their_machine()};
  Scheduler scheduler(models, names, make_policy(policy), options);
  const std::vector<std::vector<const ShardLayout*>> layouts(models.size(), stages);
  VirtualMesh mesh(layouts, CostModel(layouts, options.costs), kLatency_s);
  for (Request& request : requests_of(cell, seed)) scheduler.submit(std::move(request));
  scheduler.close_input();
  return outcome_of(run_virtually(scheduler, mesh), mesh);
}

// Mean over the seeds.
Outcome serve_all(const Cell& cell, const std::string& policy, int seeds) {
  Outcome mean;
  for (int seed = 0; seed < seeds; ++seed) mean.add(serve(cell, policy, seed), 1.0 / seeds);
  return mean;
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

std::string missed_targets(const Outcome& fifo, const Outcome& balanced) {
  std::vector<std::string> missed;
  if (balanced.mean_s > kMeanLimit * fifo.mean_s) missed.emplace_back("mean");
  if (balanced.p99_s > kP99Limit * fifo.p99_s) missed.emplace_back("p99");
  if (fifo.link_use > kSwapsDominate && kGain * balanced.mean_s > fifo.mean_s) missed.emplace_back("gain");
  return joined(missed);
}

// Whether the cell meets its targets.
bool print_row(const Cell& cell, const Outcome& fifo, const Outcome& balanced) {
  std::vector<std::string> rates;
  for (const double rate : cell.rates) rates.push_back(fmt::format("{}", rate));
  const std::string missed = missed_targets(fifo, balanced);
  fmt::print("| {} | {} | {} | {} | {:.3f} |", joined(rates), cell.cv, cell.resident, cell.max_seqs, cell.published_s);
  for (const Outcome& outcome : {fifo, balanced}) {
    fmt::print(" {:.3f} | {:.3f} | {:.1f} | {:.0f} |", outcome.mean_s, outcome.p99_s, outcome.swaps,
               100 * outcome.link_use);
  }
  fmt::print(" {:.2f}{} | {:.2f} | {} |\n", fifo.mean_s / balanced.mean_s,
             fifo.link_use > kSwapsDominate ? " (swaps dominate)" : "", fifo.p99_s / balanced.p99_s,
             missed.empty() ? "met" : "missed: " + missed);
  return missed.empty();
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 10;
  fmt::print(
      "| rates | cv | resident | batch | Computron: mean s | fifo: mean s | p99 s | swaps | link % | balanced: mean s |"
      " p99 s | swaps | link % | fifo ÷ balanced: mean | p99 | targets |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  bool met = true;
  for (const Cell& cell : grid()) {
    met &= print_row(cell, serve_all(cell, "fifo", seeds), serve_all(cell, "balanced", seeds));
  }
  return met ? 0 : 1;
}
