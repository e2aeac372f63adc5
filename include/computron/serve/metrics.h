// The metrics of a run (`--metrics FILE.json`, inputs/README.md) and the progress line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "computron/sched/deadlines.h"
#include "computron/sched/request.h"
#include "computron/serve/distribution.h"
#include "computron/serve/queue_history.h"

namespace computron {

struct SwapMetrics {
  std::uint64_t count = 0;                // a model chosen to run with pages missing
  std::uint64_t pages = 0;                // fetched, summed over ranks
  std::uint64_t bytes = 0;                // fetched, as they are in frames, summed over ranks
  std::uint64_t link_bytes = 0;           // of the same over host links (ShardLayout::link_bytes)
  std::uint64_t largest_shard_bytes = 0;  // over its host link, of the rank that fetched most
  double busy_s = 0;                      // union of fetch times, slowest rank
  double exposed_s = 0;                   // compute stalled on pages, slowest rank
  std::uint64_t verified = 0;             // pages digested in their frames and found right, summed over ranks
  std::uint64_t refetched = 0;            // pages copied again because they had arrived damaged, summed over ranks
};

struct StepMetrics {
  std::uint64_t count = 0;
  std::uint64_t passes = 0;  // steps that were not for fetches alone
  std::uint64_t graphs = 0;  // of them, those that every rank's device was given as one graph
  std::uint64_t rides = 0;   // passes of another model that had sequences of this one, too
  double total_s = 0;        // from the step being sent to its last done record, summed
  double overhead_s = 0;     // rank 0's deciding, sending and bookkeeping, summed
  // [rank] of its passes, without stalls for pages or the stage before. Empty: no step.
  std::vector<double> compute_s;
};

struct CacheMetrics {
  std::uint64_t preemptions = 0;        // sequences preempted because blocks ran out, to be resumed
  std::uint64_t prefix_hit_tokens = 0;  // of prompts, taken from others' (--share-prefixes)
};

// A model's in one group of ranks; merged, the model's, a group's and the job's.
struct ModelMetrics {
  std::uint64_t requests_ok = 0;
  std::uint64_t requests_failed = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t generated_tokens = 0;
  DeadlineCount deadlines;
  Distribution latency_s;  // arrival to finish, of the ok ones
  Distribution ttft_s;     // arrival to first token
  SwapMetrics swaps;
  StepMetrics steps;
  CacheMetrics cache;
};

// What wrote the metrics; empty: unknown.
struct ProgramInfo {
  std::string version, commit;         // "0.1.0"
  std::string build, compiler;         // "Release", "12.2.0"
  std::vector<std::string> libraries;  // "Open MPI v4.1.4"
};

struct RunInfo {
  double wall_s = 0;
  int ranks = 1, tp = 1, pp = 1, groups = 1;
  std::string device;
  double link_gb_per_s = 0;  // per rank: the emulated rate; 0: not held, unknown
  bool link_emulated = false;
  bool link_coded = false;  // pages cross it coded, those that gain by it
  ProgramInfo program = {};
  std::string started = {};                                             // 2026-11-22T01:02:03Z
  std::string host = {};                                                // of rank 0
  std::string slurm_job_id = {};                                        // of rank 0's environment; empty: none
  std::vector<std::pair<std::string, std::string>> configuration = {};  // option, value in effect
  std::uint32_t attempt = 1;          // at the same output; all metrics are this one's
  std::uint64_t requests_before = 0;  // had their results when it began
  std::string predicted = {};         // what computron plan expected of the job, as JSON; empty: nothing
};

// A group of ranks as metrics name it.
struct MetricsGroup {
  int tp = 1, pp = 1;
  int first_rank = 0;
  std::vector<ModelId> models;  // of the job, by their numbers in the group; ascending
};

// Kept by group and by model of the group. Counts and bytes add up over all of them. Times that a rank spends add up
// over the models of its group; groups work side by side, so of several the longest counts.
class Metrics {
 public:
  explicit Metrics(std::vector<std::string> model_ids);  // of a job of one group
  Metrics(std::vector<std::string> model_ids, std::vector<MetricsGroup> groups);

  // A request with all its parts: ok, or failed if one of them has an error_code. Its parts bear the job's numbers of
  // models.
  void add(std::span<const Completion> parts);
  // A line that never became a request of a model, or one that is given up; only that may have a deadline.
  void add_failure(bool with_deadline = false);
  // Of a group, by its own number of the model; for swaps and steps.
  ModelMetrics& model(ModelId local, int group = 0) { return groups_[static_cast<std::size_t>(group)].models[local]; }
  std::uint64_t finished() const;
  std::uint64_t finished(ModelId job_model) const;
  std::uint64_t failed() const;
  ModelMetrics counts() const;  // of all models, without the times of requests
  QueueHistory& queues() { return queues_; }

  // The object of inputs/README.md; job-wide metrics are the models' merged.
  std::string to_json(const RunInfo& info) const;
  // Some lines for people: requests, tokens/s, swaps, GB/s a rank; predicted beside measured.
  std::string summary(const RunInfo& info) const;

 private:
  struct Group {
    MetricsGroup of;
    std::vector<ModelMetrics> models;  // by the group's numbers
    ModelMetrics merged(bool with_times) const;
    std::optional<ModelId> local(ModelId job_model) const;  // none: it does not have the model
  };
  ModelMetrics merged(bool with_times) const;
  ModelMetrics merged(ModelId job_model) const;
  nlohmann::ordered_json group_json(const Group& group, const RunInfo& info) const;
  std::vector<std::string> ids_;
  std::vector<Group> groups_;
  QueueHistory queues_;
  std::uint64_t failed_lines_ = 0, failed_lines_with_deadline_ = 0;
};

// Requests done/total, tokens/s, the model running, swap in flight, time left: one rewritten line on a terminal,
// elsewhere a line every `interval_s`.
class ProgressLine {
 public:
  struct State {
    std::uint64_t done = 0;
    std::uint64_t total = 0;
    bool total_known = false;
    std::uint64_t generated_tokens = 0;
    std::string model;
    bool swapping = false;
  };
  ProgressLine(bool enabled, double start_s, double interval_s = 5);
  // True when update() would show a line; spares the caller the state otherwise. `now` of now_s().
  bool due(double now) const { return enabled_ && now - last_s_ >= interval_s_; }
  void update(double now, const State& state);
  void finish(double now, const State& state);

 private:
  std::string line(double now, const State& state) const;
  bool enabled_;
  bool terminal_;
  double start_s_;
  double interval_s_;
  double last_s_ = 0;
};

}  // namespace computron
