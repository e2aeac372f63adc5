// The file of `serve --metrics` as a report reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace computron {

// What is not known is absent. Older files lack what is marked °; its lists are empty then.
struct DistributionMetrics {
  std::optional<double> mean, p50, p90, p99, max;
  std::vector<double> percentiles;  // ° [i] of 0 % to 100 %, evenly spaced
};

struct GroupMetrics {
  std::string id;  // model; empty: the job
  std::uint64_t total = 0, ok = 0, failed = 0;
  std::uint64_t deadlines = 0, deadlines_met = 0, deadlines_unserved = 0;  // ° requests that had one
  std::optional<double> attainment;                                        // ° the share of them that met it
  std::uint64_t prompt_tokens = 0, generated_tokens = 0;
  std::optional<double> generated_per_s;
  DistributionMetrics latency_s, ttft_s;
  std::uint64_t swaps = 0, pages = 0, bytes = 0;
  std::uint64_t link_bytes = 0;  // `bytes` where the file does not say it
  double busy_s = 0, exposed_s = 0;
  std::optional<double> gb_per_s_per_rank, link_fraction;
  std::uint64_t steps = 0;
  std::uint64_t graphs = 0;  // ° passes that devices were given as one graph
  std::optional<double> step_mean_us, step_overhead_us;
  std::vector<std::uint64_t> unfinished;  // ° requests waiting and running, at each time of RunMetrics::interval_s
};

struct MeshMetrics {
  int tp = 1, pp = 1;
  bool operator==(const MeshMetrics&) const = default;
};

// What computron plan expects of a job, a group of ranks or a model; what it does not say is absent.
struct PredictedPart {
  std::optional<double> attainment, mean_latency_s, p99_latency_s, makespan_s, swaps_per_s;
};

struct PredictedMetrics {
  std::string basis;                           // of which requests
  std::optional<double> duration_s, requests;  // of these
  PredictedPart all;
  std::vector<PredictedPart> groups;                          // of ranks
  std::vector<std::pair<std::string, PredictedPart>> models;  // id
};

struct RunMetrics {
  double wall_s = 0;
  int ranks = 1;
  std::vector<MeshMetrics> meshes;  // of the groups; where the file has no list of them all are the first
  std::string device;
  std::optional<double> link_gb_per_s;  // of a rank
  bool link_emulated = false;
  GroupMetrics job;
  std::vector<GroupMetrics> models;
  std::vector<GroupMetrics> rank_groups;  // of ranks, in a job of several
  std::string version, started, host;     // °
  std::string commit, build, compiler;    // ° of the program
  std::vector<std::string> libraries;     // °
  std::string slurm_job_id;               // °
  std::uint64_t attempt = 1;              // ° at the same output; all metrics are this one's
  std::uint64_t before = 0;               // ° requests that had their results when it began
  double interval_s = 0;                  // ° between two values of a list over time; 0: there is none
  std::vector<std::uint64_t>
      waiting;  // ° requests that no step has begun; GroupMetrics::unfinished has those that run too
  std::vector<std::pair<std::string, std::string>> configuration;  // ° option, value
  std::optional<PredictedMetrics> predicted;                       // of a placement that computron plan wrote
};

// `file` is named in what is wrong: Error{kData} for anything but the metrics of a run.
RunMetrics parse_run_metrics(std::string_view text, const std::string& file);

}  // namespace computron
